package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

type merged struct {
	discovery *discovery.Discovery
	openapi   *openapi.OpenAPI
	behind    http.Handler // for the cluster's own aggregator. Nil means that Fairlead is not behind it
}

func (s *server) makeDocuments() {
	cfg := documents.Config{Tables: s.registry, Sinks: s.sinks}
	cfg.From = func(e *registry.Entry) documents.Do {
		return func(_ context.Context, r *http.Request) (*http.Response, error) {
			return s.proxy.Fetch(s.backends.Upstream(e), asAggregator(r), false, nil) // one at a time: no limit
		}
	}
	behind := cfg
	if s.kube != nil {
		cfg.Local, cfg.Only, cfg.Each = s.fromLocal, s.kube.pools.Only, s.kube.pools.Each
		cfg.Ready = func(server string) bool { return s.kube.pools.At(server).Ready() }
		s.loops["CRD watches"] = func(ctx context.Context) error { return s.kube.pools.Each(ctx, s.followCRDs) }
	}
	if s.apiServices != nil {
		cfg.Made = !s.o.registry.cluster
		own := transportTo(s.apiServices)
		cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) {
			r.URL.Host = inProcess
			return own.RoundTrip(r)
		}
	}
	s.discovery = discovery.New(discovery.Config{Config: cfg, StaleAfter: s.o.staleAfter})
	s.openapi = openapi.New(cfg)
	s.loops["discovery"], s.loops["OpenAPI"] = s.discovery.Run, s.openapi.Run
	if s.o.Behind != "" {
		behind.Tables, behind.Metrics = sent{s.registry}, nil
		schemas, mux := openapi.New(behind), http.NewServeMux() // it asks once more: small, while all answer 304
		mux.Handle("/openapi/", schemas)
		// Not /apis: the aggregator takes what is Stale there, or not in this table yet, for Current. After a 404 it
		// asks for each group-version: of several servers here.
		mux.Handle("/apis/{group}/{version}", s.discovery)
		mux.Handle("/apis/{group}/{version}/{$}", s.discovery)
		s.behind, s.loops["OpenAPI behind"] = mux, schemas.Run
	}
}

type sent struct{ *registry.Registry } // has the table of what the cluster's aggregator sends here

func (s sent) Table() *registry.Table { return s.Registry.Table().Sent() }

func (s *server) serveDocument(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/openapi/"):
		s.openapi.ServeHTTP(w, r)
	case s.kube == nil && strings.TrimSuffix(path, "/") == "/api":
		s.apiServices.ServeHTTP(w, r) // there is no core group: clients get an empty list
	default:
		s.discovery.ServeHTTP(w, r)
	}
}

func (s *server) rendered(h *proxy.Head) *engine.Answer {
	return (*engine.Answer)(s.discovery.Rendered(h.Path, h.RawQuery, h.Fields))
}

func asAggregator(r *http.Request) *http.Request {
	r.Header["X-Remote-User"] = []string{"system:kube-aggregator"}
	r.Header["X-Remote-Group"] = []string{"system:masters"}
	r.Header["User-Agent"] = []string{"fairlead/" + version}
	return r
}

var errNotHealthy = errors.New("it is not healthy")

// fromLocal sends requests to a local apiserver, once it is ready. One that has just started
// serves documents without CRDs for a second or two: it has not read them yet.
func (s *server) fromLocal(server string) documents.Do {
	return func(ctx context.Context, r *http.Request) (*http.Response, error) {
		at := s.kube.pools.At(server)
		for !at.Ready() {
			if !latest.Sleep(ctx, 50*time.Millisecond) { // documents are asked for at once after a restart
				return nil, errNotHealthy
			}
		}
		res, err := s.proxy.Fetch(s.kube.pools.Upstream(backend.PoolCertificate), s.kube.asOurselves(r), false, at)
		if err != nil {
			return nil, err
		}
		if !at.Ready() { // it restarted, and the request was sent again
			_ = res.Body.Close()
			return nil, errNotHealthy
		}
		return res, nil
	}
}

func (k *kube) asOurselves(r *http.Request) *http.Request {
	if k.credential == nil {
		return asAggregator(r)
	}
	r.Header["User-Agent"] = []string{"fairlead/" + version}
	if own := k.credential.Authorization(); own != "" {
		r.Header["Authorization"] = []string{own}
	}
	return r
}

// followCRDs refreshes a server's documents when a CRD changes: a column, say, changes without any APIService.
func (s *server) followCRDs(ctx context.Context, server string) {
	watch := func(_ context.Context, r *http.Request) (*http.Response, error) {
		own := s.kube.pools.Upstream(backend.PoolCertificate)
		return s.proxy.Fetch(own, s.kube.asOurselves(r), true, s.kube.pools.At(server))
	}
	_ = documents.Watch(ctx, watch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", func() {
		s.discovery.LocalChanged(server)
		s.openapi.LocalChanged(server)
	}) // that of ctx
}
