package health

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// fetch sends a request, and returns the code and the body.
func fetch(h http.Handler, path string) string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return fmt.Sprint(w.Code, " ", w.Body)
}

func failing(*http.Request) error { return errors.New("token at 10.1.2.3") }
func passing(*http.Request) error { return nil }

// listed is one check beside ping.
func listed(name string, check func(*http.Request) error) []healthz.HealthChecker {
	return []healthz.HealthChecker{healthz.NamedCheck(name, check)}
}

// Answers equal those of Kubernetes' own handler, but that of one check shows strangers no reason.
func TestChecksAnswerAsKubernetesDoes(t *testing.T) {
	for name, f := range map[string]func(*http.Request) error{"passing": passing, "failing": failing} {
		ours := &Checks{Name: "readyz", List: append(listed("table", f), listed("local", passing)...)}
		theirs := http.NewServeMux()
		healthz.InstallReadyzHandler(theirs, healthz.PingHealthz, healthz.NamedCheck("table", f), healthz.NamedCheck("local", passing))
		for _, path := range []string{
			"/readyz", "/readyz?verbose", "/readyz?verbose=false", "/readyz?exclude=table", "/readyz?exclude=table&exclude=local&verbose",
			"/readyz?exclude=nothing&verbose", "/readyz?exclude=nothing&exclude=a%22b&verbose", "/readyz/ping", "/readyz/local", "/readyz/nothing",
		} {
			got, want := httptest.NewRecorder(), httptest.NewRecorder()
			ours.ServeHTTP(got, httptest.NewRequest(http.MethodGet, path, nil))
			theirs.ServeHTTP(want, httptest.NewRequest(http.MethodGet, path, nil))
			check.Same(t, fmt.Sprint(want.Code, want.Body), fmt.Sprint(got.Code, got.Body), "%s of a %s check", path, name)
			check.Same(t, false, strings.Contains(got.Body.String(), "10.1.2.3"), "%s shows a reason", path)
			for _, field := range []string{"Content-Type", "X-Content-Type-Options"} {
				if want.Code != http.StatusOK {
					check.Same(t, want.Header().Get(field), got.Header().Get(field), "%s: %s", path, field)
				}
			}
		}
	}
	check.Same(t, "500 internal server error: reason withheld\n", fetch(&Checks{Name: "readyz", List: listed("table", failing)}, "/readyz/table"), "one check")
}

func TestDrainingEndsReadinessAndNotLife(t *testing.T) {
	drain := &atomic.Bool{}
	ready := &Checks{Name: "readyz", Draining: drain}
	check.Same(t, "200 [+]ping ok\n[+]fairlead ok\nreadyz check passed\n", fetch(ready, "/readyz?verbose"), "before")
	drain.Store(true)
	check.Same(t, "500 [+]ping ok\n[-]fairlead failed: reason withheld\nreadyz check failed\n", fetch(ready, "/readyz"), "draining")
	check.Same(t, "200 ok", fetch(ready, "/readyz?exclude=fairlead"), "excluded")
	check.Same(t, "200 ok", fetch(&Checks{Name: "livez"}, "/livez"), "alive while draining")
	check.Fault(t, "shutting down", ready.Err(nil), "why it drains")
}

func TestRelayAnswersForFairleadFirst(t *testing.T) {
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "local "+r.URL.RequestURI())
	})
	const own = "500 [-]fairlead failed: reason withheld\n"
	for _, tt := range []struct {
		path, ready, unready string
	}{
		{"/readyz", "200 local /readyz", own + "readyz check failed\n"},
		{"/readyz?verbose", "200 local /readyz?verbose", own + "readyz check failed\n"},
		{"/healthz", "200 local /healthz", own + "healthz check failed\n"},
		{"/healthz/etcd?verbose=1", "200 local /healthz/etcd?verbose=1", own + "healthz check failed\n"},
		{"/readyz/fairlead", "200 ok", own + "readyz check failed\n"},
		{"/readyz?exclude=fairlead", "200 local /readyz?exclude=fairlead", "200 local /readyz?exclude=fairlead"},
		{"/readyz/fairlead?exclude=fairlead", "200 ok", own + "readyz check failed\n"},
	} {
		drain := &atomic.Bool{}
		broken := &Relay{Ready: &Checks{Name: "readyz", List: listed("table", failing)}, Local: local}
		draining := &Relay{Ready: &Checks{Name: "readyz", Draining: drain}, Local: local}
		check.Same(t, tt.ready, fetch(draining, tt.path), "%s when ready", tt.path)
		drain.Store(true)
		check.Same(t, tt.unready, fetch(draining, tt.path), "%s when draining", tt.path)
		check.Same(t, tt.unready, fetch(broken, tt.path), "%s when broken", tt.path)
	}
}

// A check beside those that decide is shown, has a path, and ends no readiness. So does one that decides, and finds
// more than that.
func TestOtherChecks(t *testing.T) {
	c := &Checks{
		Name: "readyz", List: append(listed("table", passing), listed("pairs", passing)...),
		Others: slices.Concat(listed("rights", failing), listed("clock", passing), listed("table", passing),
			listed("pairs", failing)),
	}
	for path, want := range map[string]string{
		"/readyz": "200 ok",
		"/readyz?verbose": "200 [+]ping ok\n[+]table ok\n[+]pairs ok\nreadyz check passed\n" +
			"[-]rights failed, which does not end readiness: reason withheld\n[+]clock ok\n" +
			"[-]pairs failed, which does not end readiness: reason withheld\n",
		"/readyz/rights":  "500 internal server error: reason withheld\n",
		"/readyz/clock":   "200 ok",
		"/readyz/table":   "200 ok",
		"/readyz/pairs":   "500 internal server error: reason withheld\n",
		"/readyz/nothing": "404 404 page not found\n",
	} {
		check.Same(t, want, fetch(c, path), "%s", path)
	}
	check.Same(t, nil, c.Err(nil), "it ends readiness")
	c = &Checks{Name: "readyz", List: listed("pairs", failing), Others: listed("pairs", failing)}
	check.Same(t, "500 [+]ping ok\n[-]pairs failed: reason withheld\nreadyz check failed\n", fetch(c, "/readyz?verbose"),
		"one that ends readiness")
}
