// Package pages serves what Fairlead shows about itself: the status page, the same as JSON, the explanation of a path,
// and the stream of changes. It is on the admin port and below /fairlead/ on the front door, authorized on both.
//
// Each response is made from the current table; only the last transitions and latencies are stored.
// All methods of Pages may be called concurrently.
//
// It decides nothing: the proxy says where a path leads, the registry whether a backend is healthy.
package pages

import (
	"context"
	"encoding/json"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

// Config holds the sources of the pages. A field that may be empty says what that means.
type Config struct {
	Registry     *registry.Registry         // has the current table
	Proxy        *proxy.Proxy               // explains requests, and counts those that failed
	Backends     *backend.Pools             // have the requests in flight, and the latencies of those so far
	LocalServers func() []registry.Endpoint // returns the local apiservers with their health. It may return none
	// Endpoint adds to an endpoint of an APIService, or to a local apiserver (LocalName), its last
	// probe, what it serves, and what else describes a local apiserver.
	Endpoint  func(apiService string, e *answer.Endpoint)
	Trust     func() []trust.Status     // returns the status of the bundles for backends
	Discovery func() []discovery.Status // says how current each remote APIService's part of discovery is
	OpenAPI   func() []openapi.Status   // says it of OpenAPI
	Ready     *health.Checks            // whether this replica accepts requests. While Draining, event streams end
	Tap       http.Handler              // serves single users' requests to operators
	// Process returns this process's Version, Replica, Cluster, LocalIdentity, Checks, Certificates, Notes, Handshakes.
	Process func() *answer.Status
}

// Pages serves the pages. Everything but the history works without Run.
type Pages struct {
	cfg         Config
	started     time.Time
	history     history
	traffic     traffic
	subscribers bound.Places // of the event stream
	mux         *http.ServeMux
	templates   *template.Template
}

// New makes Pages.
func New(cfg Config) *Pages {
	p := &Pages{cfg: cfg, started: time.Now(), mux: http.NewServeMux(), templates: parse()}
	p.history.endpoints = make(map[string]map[string][]answer.Change)
	p.mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.status()) })
	p.mux.HandleFunc("GET /explain", p.serveExplain)
	p.mux.HandleFunc("GET /events", p.serveEvents)
	p.mux.Handle("GET /tap", cfg.Tap)
	p.mux.HandleFunc("GET /busiest", p.serveBusiest)
	p.addHTML()
	return p
}

// Run records verdicts and latencies until ctx ends.
func (p *Pages) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	look := func() { p.traffic.look(p.cfg.Registry.Table().Servers(), p.latencies, p.cfg.Proxy.Failed) }
	loops.Go(func() { wait.Until(look, pace, ctx.Done()) })
	for _, changes := range latest.Changes(ctx, p.cfg.Registry.Table, nil) { // not what is reverted at once
		now := time.Now()
		for _, c := range changes {
			p.history.changed(remote(c.Old), remote(c.New), now)
		}
	}
	return ctx.Err()
}

// latencies counts an entry's requests: element i those that took less than 2^i µs, without those of earlier ones.
func (p *Pages) latencies(e *registry.Entry) []uint64 {
	if u := p.cfg.Backends.Upstream(e); u != nil {
		return u.Latencies()
	}
	return nil
}

// ServeHTTP answers at the root, as on the admin port, and below /fairlead/, as on the front door.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store") // it changes, and depends on the user
	if r.URL.Path == answer.Below {
		h.Set("Location", "fairlead/") // as the page's own links: it may be behind kubectl proxy, under any prefix
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if strings.HasPrefix(r.URL.Path, answer.Below+"/") {
		http.StripPrefix(answer.Below, p.mux).ServeHTTP(w, r)
		return
	}
	p.mux.ServeHTTP(w, r)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(printable.JSON(w))
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // the client may have gone
}
