package main

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

// merged are the documents that are merged from the local apiserver's and the backends'.
type merged struct {
	discovery *discovery.Discovery
	openapi   *openapi.OpenAPI
}

func (d *door) makeDocuments(context.Context) (err error) {
	cfg := documents.Config{Table: d.registry.Table, Logger: d.log, Metrics: d.metrics}
	cfg.Fetch = func(_ context.Context, e *registry.Entry, r *http.Request) (*http.Response, error) {
		return d.proxy.Fetch(d.backends.Upstream(e), asAggregator(r), false) // within no limit: only one runs at a time
	}
	if !d.o.alone() {
		cfg.FetchLocal = d.fetchLocal
	}
	if d.apiServices != nil {
		cfg.FetchOwn = inProcess{d.apiServices}.fetch
	}
	if d.documents.discovery, err = discovery.New(discovery.Config{Config: cfg, StaleAfter: d.o.staleAfter}); err != nil {
		return err
	}
	d.documents.openapi, err = openapi.New(cfg)
	d.loop("discovery", d.documents.discovery.Run)
	d.loop("OpenAPI", d.documents.openapi.Run)
	if !d.o.alone() {
		d.loop("CRD watch", d.followCRDs)
	}
	return err
}

func (d *door) serveDocument(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/openapi/"):
		d.documents.openapi.ServeHTTP(w, r)
	case d.o.alone() && strings.TrimSuffix(path, "/") == "/api":
		// Without a local apiserver there is no core group to merge, and clients that ask for its
		// versions get an empty list.
		d.apiServices.ServeHTTP(w, r)
	default:
		d.documents.discovery.ServeHTTP(w, r)
	}
}

// readyDocument implements proxy.Config.Ready.
func (d *door) readyDocument(h *proxy.Head) *h2.Answer {
	if h.Path == "/api" && d.o.alone() {
		return nil
	}
	return (*h2.Answer)(d.documents.discovery.Rendered(h.Path, h.RawQuery, h.Fields))
}

// asAggregator gives one of our own requests the identity that kube-aggregator uses; extension
// servers and the local apiserver know it.
func asAggregator(r *http.Request) *http.Request {
	r.Header["X-Remote-User"], r.Header["X-Remote-Group"] = []string{"system:kube-aggregator"}, []string{"system:masters"}
	return withAgent(r)
}

func withAgent(r *http.Request) *http.Request {
	r.Header["User-Agent"] = []string{"fairlead/" + version}
	return r
}

// lookLocal is how often fetchLocal looks for a ready apiserver: documents are asked for at once
// after a restart, and no processor notices twenty looks a second.
const lookLocal = 50 * time.Millisecond

// fetchLocal sends a request to the local apiserver, once it is ready. One that has just started
// serves documents without CRDs for a second or two: it has not read them yet.
func (d *door) fetchLocal(ctx context.Context, r *http.Request) (*http.Response, error) {
	for err := d.local.Ready(); err != nil; err = d.local.Ready() {
		select {
		case <-time.After(lookLocal):
		case <-ctx.Done():
			return nil, err
		}
	}
	res, err := d.proxy.Fetch(d.local.Upstream(backend.PoolCertificate), d.asOurselves(r), false)
	if err != nil {
		return nil, err
	}
	if err := d.local.Ready(); err != nil { // it restarted, and the request was sent again
		_ = res.Body.Close()
		return nil, err
	}
	return res, nil
}

// asOurselves gives one of our own requests the identity that the local apiserver knows us by.
func (d *door) asOurselves(r *http.Request) *http.Request {
	if d.credential == nil {
		return asAggregator(r)
	}
	if own := d.credential.Authorization(); own != "" {
		r.Header["Authorization"] = []string{own}
	}
	return withAgent(r)
}

// followCRDs refreshes both documents when a CRD changes, until ctx ends: a short name, column or
// schema can change without a change of any APIService.
func (d *door) followCRDs(ctx context.Context) error {
	watch := func(_ context.Context, r *http.Request) (*http.Response, error) {
		return d.proxy.Fetch(d.local.Upstream(backend.PoolCertificate), d.asOurselves(r), true)
	}
	return documents.Watch(ctx, watch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", func() {
		d.documents.discovery.LocalChanged()
		d.documents.openapi.LocalChanged()
	})
}
