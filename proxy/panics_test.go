package proxy

import (
	"crypto/x509"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A page of the admin port that panics is logged, too: net/http's own line is at a level that nobody reads.
func TestPageThatPanics(t *testing.T) {
	var log logbook.Book
	w := newWorld(t, worldConfig{Config: Config{Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil))}}})
	guarded := w.guard(t, w.proxy, func(http.ResponseWriter, *http.Request) { panic("a fault") })
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, guarded.URL, nil))(t)
	check.Same(t, true, check.Err(w.httpClient(t, "http/1.1", w.client.Issue(pki.Leaf{CommonName: "alice"})).Do(r)) != nil, "there is no answer")
	check.Has(t, log.String(), "handler panicked", "a fault", "panics_test.go")
}

// A chain at which verification panics (like CVE-2024-24783 and CVE-2025-58188 in crypto/x509) ends
// its own requests, not the process: over HTTP/2 a goroutine without another recover verifies it. It is logged.
func TestChainThatPanics(t *testing.T) {
	var log logbook.Book
	access, seen, _ := newLog(t)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access, Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil))}}})
	a := must.Get(authn.New(authn.Config{Anonymous: true, VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		panic("verifying " + peer[0].Subject.CommonName)
	}}))(t)
	w.proxy.cfg.Authn = a
	everyWay(t, func(t *testing.T, proto string) {
		c := w.httpClient(t, proto, w.client.Issue(pki.Leaf{CommonName: "mallory"}))
		for range 2 {
			res, err := c.Do(w.request(t, "GET", "/api/v1/pods", nil))
			if err == nil {
				res.Body.Close()
				check.Same(t, http.StatusInternalServerError, res.StatusCode, "status")
			}
			check.Has(t, <-seen, `"status":500`)
		}
		check.Has(t, log.String(), map[string]string{"http/1.1": "handler panicked", "h2": "deciding panicked"}[proto], "verifying mallory", "panics_test.go")
		w.do(t, w.httpClient(t, proto, nil), w.request(t, "GET", "/api/v1/pods", nil)).want(t, http.StatusOK, "another client")
		<-seen
	})
}

type faulty struct{ http.ResponseWriter }

func (f faulty) Unwrap() http.ResponseWriter { return f.ResponseWriter }
func (faulty) Write([]byte) (int, error)     { panic("a fault") }

// A panic ends a request as nothing else does, whatever its backend's connection says of it. Its stack has the ID that
// the request's other records have.
func TestPanicWhileForwarding(t *testing.T) {
	var log logbook.Book
	bothBackends(t, worldConfig{Config: Config{Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil))}}}, func(t *testing.T, w *world) {
		access, seen, _ := newLog(t)
		w.proxy.cfg.AccessLog = access
		w.front.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.proxy.ServeHTTP(faulty{rw}, r) })
		r := w.as(t, "bob", "GET", remoteGV+"/widgets", nil)
		r.Header.Set("Audit-Id", "id-"+t.Name())
		if res, err := w.httpClient(t, "http/1.1", nil).Do(r); err == nil {
			_ = res.Body.Close()
		}
		line := <-seen
		check.Has(t, line, `"end":"abort"`, `"audit":"id-`+t.Name())
		_, panicked, _ := strings.Cut(log.String(), "audit=id-"+t.Name())
		check.Has(t, panicked, "stack=", "panics_test.go")
	})
}
