package health

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/server/healthz"
)

// fetch sends a request.
func fetch(h http.Handler, path string) (code int, body string, header http.Header) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String(), w.Header()
}

func failing(*http.Request) error { return errors.New("token at 10.1.2.3") }
func passing(*http.Request) error { return nil }

// Answers equal those of Kubernetes' own handler, but that of one check shows strangers no reason.
func TestChecksAnswerAsKubernetesDoes(t *testing.T) {
	for _, broken := range []bool{false, true} {
		f := passing
		if broken {
			f = failing
		}
		ours := &Checks{Name: "readyz", List: []healthz.HealthChecker{healthz.NamedCheck("table", f), healthz.NamedCheck("local", passing)}}
		theirs := http.NewServeMux()
		healthz.InstallReadyzHandler(theirs, healthz.PingHealthz, healthz.NamedCheck("table", f), healthz.NamedCheck("local", passing))
		for _, path := range []string{
			"/readyz", "/readyz?verbose", "/readyz?verbose=false", "/readyz?exclude=table", "/readyz?exclude=table&exclude=local&verbose",
			"/readyz?exclude=nothing&verbose", "/readyz?exclude=nothing&exclude=a%22b&verbose", "/readyz/ping", "/readyz/local", "/readyz/nothing",
		} {
			code, body, header := fetch(ours, path)
			wantCode, wantBody, wantHeader := fetch(theirs, path)
			if code != wantCode || body != wantBody {
				t.Errorf("%s (broken: %v): got %d, want %d; body %s", path, broken, code, wantCode, cmp.Diff(wantBody, body))
			}
			if strings.Contains(body, "10.1.2.3") {
				t.Errorf("%s shows a reason: %s", path, body)
			}
			for _, name := range []string{"Content-Type", "X-Content-Type-Options"} {
				if header.Get(name) != wantHeader.Get(name) && code != http.StatusOK {
					t.Errorf("%s: %s is %q, want %q", path, name, header.Get(name), wantHeader.Get(name))
				}
			}
		}
		if code, body, _ := fetch(ours, "/readyz/table"); broken && (code != 500 || body != "internal server error: reason withheld\n") {
			t.Errorf("one check: %d %q", code, body)
		}
	}
}

func TestDrainingEndsReadinessAndNotLife(t *testing.T) {
	drain := &atomic.Bool{}
	var log strings.Builder
	ready := &Checks{Name: "readyz", Draining: drain, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	alive := &Checks{Name: "livez"}
	if code, body, _ := fetch(ready, "/readyz?verbose"); code != 200 || body != "[+]ping ok\n[+]fairlead ok\nreadyz check passed\n" {
		t.Errorf("before: %d %q", code, body)
	}
	drain.Store(true)
	for range 2 { // two callers that ask in turn
		if code, body, _ := fetch(ready, "/readyz"); code != 500 || body != "[+]ping ok\n[-]fairlead failed: reason withheld\nreadyz check failed\n" {
			t.Errorf("draining: %d %q", code, body)
		}
		if code, _, _ := fetch(ready, "/readyz?exclude=fairlead"); code != 200 {
			t.Errorf("excluded: %d", code)
		}
	}
	if code, _, _ := fetch(alive, "/livez"); code != 200 {
		t.Errorf("not alive while draining: %d", code)
	}
	if n := strings.Count(log.String(), "health checks"); n != 1 || !strings.Contains(log.String(), "shutting down") {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}

// A process that is not ready yet after its start logs no warning. Later it does.
func TestStartWarnsOfNothing(t *testing.T) {
	var log strings.Builder
	check := failing
	ready := &Checks{Name: "readyz", List: []healthz.HealthChecker{healthz.NamedCheck("table", func(r *http.Request) error { return check(r) })}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	fetch(ready, "/readyz?exclude=table") // shows nothing of the process
	fetch(ready, "/readyz")
	if strings.Contains(log.String(), "WARN") || !strings.Contains(log.String(), "not ready yet") {
		t.Errorf("at the start: %s", log.String())
	}
	check = passing
	fetch(ready, "/readyz")
	check = failing
	fetch(ready, "/readyz")
	if strings.Count(log.String(), "WARN") != 1 {
		t.Errorf("after it was ready: %s", log.String())
	}
}

func TestRelayAnswersForFairleadFirst(t *testing.T) {
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "local "+r.URL.RequestURI())
	})
	const own = "[-]fairlead failed: reason withheld\n"
	for _, tt := range []struct {
		path, ready, unready string
	}{
		{"/readyz", "local /readyz", own + "readyz check failed\n"},
		{"/readyz?verbose", "local /readyz?verbose", own + "readyz check failed\n"},
		{"/healthz", "local /healthz", own + "healthz check failed\n"},
		{"/healthz/etcd?verbose=1", "local /healthz/etcd?verbose=1", own + "healthz check failed\n"},
		{"/readyz/fairlead", "ok", own + "readyz check failed\n"},
		{"/readyz?exclude=fairlead", "local /readyz?exclude=fairlead", "local /readyz?exclude=fairlead"},
		{"/readyz/fairlead?exclude=fairlead", "ok", own + "readyz check failed\n"},
	} {
		drain := &atomic.Bool{}
		broken := &Relay{Ready: &Checks{Name: "readyz", List: []healthz.HealthChecker{healthz.NamedCheck("table", failing)}}, Local: local}
		draining := &Relay{Ready: &Checks{Name: "readyz", Draining: drain}, Local: local}
		if code, body, _ := fetch(draining, tt.path); code != 200 || body != tt.ready {
			t.Errorf("%s when ready: %d %q, want %q", tt.path, code, body, tt.ready)
		}
		drain.Store(true)
		for name, relay := range map[string]*Relay{"broken": broken, "draining": draining} {
			code, body, _ := fetch(relay, tt.path)
			if (code == 200) != strings.HasPrefix(body, "local") || code != 200 && code != 500 || body != tt.unready {
				t.Errorf("%s when %s: %d %q, want %q", tt.path, name, code, body, tt.unready)
			}
		}
	}
}

// A check beside those that decide is shown, has a path, and ends no readiness.
func TestOtherChecks(t *testing.T) {
	c := &Checks{Name: "readyz", List: []healthz.HealthChecker{healthz.NamedCheck("table", passing)}, Others: []healthz.HealthChecker{
		healthz.NamedCheck("rights", failing), healthz.NamedCheck("clock", passing),
	}}
	for _, tt := range []struct {
		path string
		code int
		body string
	}{
		{"/readyz", 200, "ok"},
		{"/readyz?verbose", 200, "[+]ping ok\n[+]table ok\nreadyz check passed\n[-]rights failed, which does not end readiness: reason withheld\n[+]clock ok\n"},
		{"/readyz/rights", 500, "internal server error: reason withheld\n"},
		{"/readyz/clock", 200, "ok"},
		{"/readyz/table", 200, "ok"},
		{"/readyz/nothing", 404, "404 page not found\n"},
	} {
		code, body, _ := fetch(c, tt.path)
		if code != tt.code || body != tt.body {
			t.Errorf("%s: %d %q, want %d %q", tt.path, code, body, tt.code, tt.body)
		}
	}
	if err := c.Err(nil); err != nil {
		t.Errorf("it ends readiness: %v", err)
	}
}
