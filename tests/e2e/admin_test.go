//go:build e2e

package e2e

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testAdmin checks the admin port: health is public, the rest needs authorization by the cluster.
func testAdmin(t *testing.T, w *world) {
	if w.lane == direct {
		return // it has no admin port
	}
	ask := func(t *testing.T, cr cluster.Credentials, path string, header http.Header) reply {
		t.Helper()
		v := visit{proto: w.protos()[0], pair: cr.Pair, method: http.MethodGet, path: path, header: header}
		if cr.Token != "" {
			v.header = with(v.header, bearer(cr.Token))
		}
		return v.send(t, w.front.Admin)
	}
	nobody, alice, admin := cluster.Credentials{}, w.StaticToken("alice"), w.Admin()
	for _, tc := range []struct {
		path   string
		status int
		want   string
	}{
		{"/livez", http.StatusOK, `^ok$`},
		{"/readyz", http.StatusOK, `^ok$`},
		{"/livez?verbose", http.StatusOK, `(?s)^\[\+\]ping ok\n.*livez check passed\n$`},
		{"/readyz?verbose", http.StatusOK, `(?s)^\[\+\]ping ok\n\[\+\]fairlead ok\n.*\[\+\]table ok\n.*readyz check passed\n$`},
		{"/readyz?verbose&exclude=table", http.StatusOK, `(?s)\[\+\]table excluded: ok\n`},
		{"/readyz?verbose&exclude=nothing", http.StatusOK, `(?s)some health checks cannot be excluded: no matches for "nothing"`},
		{"/readyz/table", http.StatusOK, `^ok$`},
		{"/readyz/nothing", http.StatusNotFound, `not found`},
	} {
		t.Run("GET "+tc.path[1:], func(t *testing.T) {
			if r := ask(t, nobody, tc.path, nil); r.status != tc.status || !regexp.MustCompile(tc.want).Match(r.body) {
				t.Errorf("%d %q, want %d %s", r.status, r.body, tc.status, tc.want)
			}
		})
	}
	for _, path := range []string{"/metrics", "/status", "/debug/pprof/cmdline"} {
		t.Run(path[1:]+" is not for everybody", func(t *testing.T) {
			wantStatus(t, ask(t, nobody, path, nil), http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "")
			wantStatus(t, ask(t, cluster.Credentials{Token: "not-a-token"}, path, nil), http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "")
			wantStatus(t, ask(t, alice, path, nil), http.StatusForbidden, metav1.StatusReasonForbidden, `User "alice" cannot get path "`+path+`"`)
			wantStatus(t, ask(t, admin, path, http.Header{"Impersonate-User": {"bob"}}), http.StatusForbidden, metav1.StatusReasonForbidden, `User "bob" cannot get path`)
			if r := ask(t, admin, path, nil); r.status != http.StatusOK {
				t.Errorf("the administrator: %d %.200s", r.status, r.body)
			}
		})
	}
	t.Run("metrics for whom a role lets", func(t *testing.T) {
		kc := w.admin(t)
		kc.run(t, "create", "clusterrole", "scraper", "--verb=get", "--non-resource-url=/metrics")
		kc.run(t, "create", "clusterrolebinding", "scrapers", "--clusterrole=scraper", "--user=alice")
		suite.Eventually(t, time.Minute, "the new binding is known", func() (bool, string) { // a refusal is cached for 10 s
			r := ask(t, alice, "/metrics", nil)
			return r.status == http.StatusOK, string(r.body)
		})
	})
	t.Run("metrics", func(t *testing.T) {
		w.admin(t).run(t, "get", "--raw", "/apis/wardle.example.com/v1beta1/flunders")
		text := string(ask(t, admin, "/metrics", nil).body)
		for _, series := range []string{
			`aggregator_unavailable_apiservice{name="v1beta1.wardle.example.com"} 0`,
			`fairlead_request_total{`, `fairlead_request_duration_seconds_bucket{`, `group="wardle.example.com"`,
			`fairlead_build_info{`, "go_goroutines ", "process_resident_memory_bytes ",
		} {
			if !strings.Contains(text, series) {
				t.Errorf("no %s", series)
			}
		}
	})
}
