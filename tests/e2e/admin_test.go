//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// testAdmin checks the admin port: health is public, the rest needs authorization by the cluster.
func testAdmin(t *testing.T, q *quay) {
	get := func(cr cluster.Credentials, path string) ask.Reply {
		return visit{proto: q.protos()[0], pair: cr.Pair, method: http.MethodGet, path: path, header: ask.Bearer(cr.Token)}.send(t, q.front.Admin)
	}
	if r := get(cluster.Credentials{}, "/readyz?verbose"); r.Code != http.StatusOK || !strings.Contains(r.Body, "[+]table ok\n") {
		t.Errorf("readyz: %d %s", r.Code, r.Body)
	}
	for _, path := range []string{"/metrics", "/status", "/debug/pprof/cmdline"} {
		for want, cr := range map[int]cluster.Credentials{
			http.StatusUnauthorized: {Token: "not-a-token"}, http.StatusForbidden: q.StaticToken("alice"), http.StatusOK: q.Admin(),
		} {
			if r := get(cr, path); r.Code != want {
				t.Errorf("%s: %d %.300s, want %d", path, r.Code, r.Body, want)
			}
		}
	}
}
