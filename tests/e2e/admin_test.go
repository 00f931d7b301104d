//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// testAdmin checks the admin port: health is public, the rest needs authorization by the cluster.
func testAdmin(t *testing.T, q *quay) {
	ask := func(t *testing.T, cr cluster.Credentials, path string) reply {
		t.Helper()
		v := visit{proto: q.protos()[0], pair: cr.Pair, method: http.MethodGet, path: path, header: http.Header{}}
		if cr.Token != "" {
			v.header = bearer(cr.Token)
		}
		return v.send(t, q.front.Admin)
	}
	nobody, alice := cluster.Credentials{}, q.StaticToken("alice")
	if r := ask(t, nobody, "/readyz?verbose"); r.status != http.StatusOK || !strings.Contains(string(r.body), "[+]table ok\n") {
		t.Errorf("readyz: %d %s", r.status, r.body)
	}
	for _, path := range []string{"/metrics", "/status", "/debug/pprof/cmdline"} {
		for _, who := range []struct {
			name string
			cred cluster.Credentials
			want int
		}{
			{"nobody", nobody, http.StatusUnauthorized},
			{"a bad token", cluster.Credentials{Token: "not-a-token"}, http.StatusUnauthorized},
			{"alice", alice, http.StatusForbidden},
			{"the administrator", q.Admin(), http.StatusOK},
		} {
			if r := ask(t, who.cred, path); r.status != who.want {
				t.Errorf("%s for %s: %d %.300s, want %d", path, who.name, r.status, r.body, who.want)
			}
		}
	}
}
