//go:build e2e

package differential

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// TestHungBackends shows that backends that accept connections and never answer do not delay
// others.
func TestHungBackends(t *testing.T) {
	w := newWorld(t)
	calm := w.latency(t)
	for i := range 20 {
		name := fmt.Sprintf("hung%d", i)
		gv := name + ".example.com/v1"
		cfg := extension.Config{Names: []string{name + ".backends.svc"}, GroupVersions: []string{gv}}
		s := extension.Start(t, cfg)
		fault := extension.Fault{Kind: extension.Hang} // every second one does not even complete the TLS handshake
		if i%2 == 1 {
			fault.Kind = extension.HangConnect
		}
		must.Do(t, s.Set(fault))
		w.register(t, name, s.Addr(), s.CA, map[string]priority{gv: {500, 10}})
	}
	suite.Eventually(t, 30*time.Second, "all hung ones are listed", func() (bool, string) {
		n := strings.Count(w.ask(t, w.front.Endpoint, "/apis", http.Header{"Accept": {"application/json" + asV2}}).Body, `"Stale"`)
		return n == 20, fmt.Sprint(n)
	})
	// One server serves the group-versions of all tries, so that only the APIService is new each
	// time.
	var gvs []string
	for i := range 5 {
		gvs = append(gvs, fmt.Sprintf("fresh%d.example.com/v1", i))
	}
	s := extension.Start(t, extension.Config{Names: []string{"fresh.backends.svc"}, GroupVersions: gvs})
	w.register(t, "fresh", s.Addr(), s.CA, nil)
	var routable, discovered []time.Duration
	for _, gv := range gvs {
		a, b := w.appear(t, s, gv)
		routable, discovered = append(routable, a), append(discovered, b)
	}
	slices.Sort(routable)
	slices.Sort(discovered)
	t.Logf("APIServices were routable after %s, discovered after %s", routable, discovered)
	// The median counts, because the machine may be busy for a moment.
	if routable[2] > 100*time.Millisecond || discovered[2] > 500*time.Millisecond {
		t.Errorf("routable in %s, discovered in %s; want 100ms and 500ms", routable[2], discovered[2])
	}
	hung := w.latency(t)
	for path, before := range calm {
		t.Logf("%s: %s without hung backends, %s with them", path, before, hung[path])
		// Twenty more group-versions are some more bytes. A document that waits for a backend takes
		// seconds.
		if hung[path] > 3*before+50*time.Millisecond {
			t.Errorf("%s takes %s with hung backends and %s without", path, hung[path], before)
		}
	}
}

// appear creates an APIService and measures the time until it is routable, and until its resources
// are discovered.
func (w *world) appear(t *testing.T, s *extension.Server, gv string) (routable, discovered time.Duration) {
	t.Helper()
	w.claim(t, gv, "fresh", s.Addr(), s.CA, priority{500, 10})
	begun := time.Now()
	suite.Eventually(t, 30*time.Second, gv+" is routable", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, "/apis/"+gv+"/namespaces/default/widgets?limit=1", nil)
		return a.Code == http.StatusOK, fmt.Sprint(a.Code, a.Body)
	})
	routable = time.Since(begun)
	suite.Eventually(t, 30*time.Second, gv+" is discovered", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, "/apis", http.Header{"Accept": {"application/json" + asV2}})
		return strings.Contains(a.Body, `"resource":"widgets","responseKind":{"group":"`+strings.TrimSuffix(gv, "/v1")+`"`), a.Body
	})
	return routable, time.Since(begun)
}

// latency returns the median response time of each document.
func (w *world) latency(t *testing.T) map[string]time.Duration {
	t.Helper()
	out := map[string]time.Duration{}
	for _, path := range []string{"/openapi/v2", "/openapi/v3", "/apis"} {
		suite.Eventually(t, time.Minute, path+" is there", func() (bool, string) {
			a := w.ask(t, w.front.Endpoint, path, nil)
			return a.Code == http.StatusOK, a.Body
		})
		var took []time.Duration
		for range 9 {
			begun := time.Now()
			w.ask(t, w.front.Endpoint, path, http.Header{"Accept-Encoding": {"gzip"}})
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		out[path] = took[len(took)/2]
	}
	return out
}
