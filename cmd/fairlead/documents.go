package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

// merged are the documents that are made of the local apiserver's documents and the backends'.
type merged struct {
	discovery *discovery.Discovery
	openapi   *openapi.OpenAPI
}

// makeDocuments makes them.
func (d *door) makeDocuments(context.Context) (err error) {
	cfg := documents.Config{Table: d.registry.Table, Fetch: d.fetchRemote, Logger: d.log, Metrics: d.metrics}
	if !d.o.alone() {
		cfg.FetchLocal = d.fetchLocal
	}
	if d.apiServices != nil {
		cfg.FetchOwn = inProcess(d.apiServices) //nolint:bodyclose // whoever fetches closes what it is given
	}
	if d.documents.discovery, err = discovery.New(discovery.Config{Config: cfg, StaleAfter: d.o.staleAfter}); err != nil {
		return err
	}
	d.documents.openapi, err = openapi.New(cfg)
	return err
}

func (d *door) serveDocument(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/openapi/"):
		d.documents.openapi.ServeHTTP(w, r)
	case d.o.alone() && strings.TrimSuffix(path, "/") == "/api":
		// Without a local apiserver there is no core group to be merged, and a client that asks for its versions is told that there are none.
		d.apiServices.ServeHTTP(w, r)
	default:
		d.documents.discovery.ServeHTTP(w, r)
	}
}

// readyDocument is proxy.Config.Ready.
func (d *door) readyDocument(h *proxy.Head) *h2.Answer {
	if h.Path == "/api" && d.o.alone() {
		return nil
	}
	return (*h2.Answer)(d.documents.discovery.Rendered(h.Path, h.RawQuery, h.Fields))
}

// asAggregator gives a request of our own the identity that kube-aggregator asks under; extension servers and the local apiserver know it.
func asAggregator(r *http.Request) *http.Request {
	r.Header["X-Remote-User"], r.Header["X-Remote-Group"] = []string{"system:kube-aggregator"}, []string{"system:masters"}
	r.Header["User-Agent"] = []string{"fairlead/" + version}
	return r
}

// fetchRemote asks an extension server. The request counts against none of its limits: it is one of ours, and there is one at a time.
func (d *door) fetchRemote(_ context.Context, e *registry.Entry, r *http.Request) (*http.Response, error) {
	return d.proxy.Fetch(d.backends.Upstream(e), asAggregator(r), false)
}

// fetchLocal asks the local apiserver.
func (d *door) fetchLocal(_ context.Context, r *http.Request) (*http.Response, error) {
	return d.proxy.Fetch(d.local.Upstream(backend.PoolCertificate), asAggregator(r), false)
}

// followCRDs has both documents look again when a CRD changes: a short name, a column or a schema comes without any change of an APIService. It ends with ctx.
func (d *door) followCRDs(ctx context.Context) error {
	watch := func(_ context.Context, r *http.Request) (*http.Response, error) {
		return d.proxy.Fetch(d.local.Upstream(backend.PoolCertificate), asAggregator(r), true)
	}
	return documents.Watch(ctx, watch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", func() {
		d.documents.discovery.LocalChanged()
		d.documents.openapi.LocalChanged()
	})
}

func (d *door) discoveryReady(*http.Request) error { return d.documents.discovery.Ready() }
