package main

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
)

// adminPages serves Fairlead's own pages. Health pages are open: load balancers and kubelets have no credentials.
func (s *server) adminPages() http.Handler {
	gathered := prometheus.Gatherers{s.metrics}
	if s.o.registry.etcd != nil {
		gathered = append(gathered, prometheus.GathererFunc(ofEtcd))
	}
	guarded := http.NewServeMux()
	guarded.Handle("/", s.pages)
	guarded.Handle("GET /metrics", scrapes(promhttp.HandlerFor(gathered, promhttp.HandlerOpts{})))
	guarded.HandleFunc("/debug/pprof/", pprof.Index)
	guarded.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	guarded.HandleFunc("/debug/pprof/profile", pprof.Profile)
	guarded.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	guarded.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux := http.NewServeMux()
	mux.Handle("/livez", s.live)
	mux.Handle("/livez/", s.live)
	mux.Handle("/readyz", s.ready)
	mux.Handle("/readyz/", s.ready)
	mux.Handle("/", s.proxy.Guard(guarded))
	return mux
}

func (s *server) makePages() {
	own := answer.Status{Version: version, Replica: s.host, Cluster: clusterName(s.o.kubeconfig)}
	if s.kube != nil {
		own.LocalIdentity = s.o.LocalIdentity
	}
	s.pages = pages.New(pages.Config{
		Registry: s.registry, Proxy: s.proxy, Backends: s.backends, Tap: &s.taps, Trust: s.trust.Status,
		Discovery: s.discovery.Status, OpenAPI: s.openapi.Status, LocalServers: s.kube.list, Ready: s.ready,
		Process: func() *answer.Status {
			st := own
			st.Checks, st.Certificates, st.Notes = s.needs.List(), s.certs.Status(), s.kube.limits()
			st.Handshakes = append(s.ports.front.Failing(), s.ports.admin.Failing()...)
			return &st
		},
		Endpoint: func(apiService string, e *answer.Endpoint) {
			prober := s.prober
			if apiService == pages.LocalName {
				prober, e.Release = s.kube.prober, s.discovery.Release(e.Address)
				e.Clients, e.Only = s.kube.pools.Stand(e.Address)
			}
			var took time.Duration
			e.Probed, took, e.ProbeError = prober.Last(apiService, e.Address)
			e.ProbeSeconds, e.Serves = took.Seconds(), prober.Serves(apiService, e.Address)
		},
	})
	s.loops["pages"] = s.pages.Run
}

// adminEngine serves HTTP/2 with the bounds of the front door. net/http answers what RFC 9113 §8.2.2 calls malformed.
func (s *server) adminEngine(own http.Handler) *h2.Server {
	plan := engine.Plan{Serve: own}
	return h2.New(h2.Config{
		Decide:     func(*h2.ConnInfo, *wire.Head, func(engine.Plan)) (engine.Plan, bool) { return plan, true },
		MaxStreams: uint32(s.o.streamsPerConn), Shards: 1, Memory: s.held, Logger: s.log, //nolint:gosec // validated
		Source: func(remote string) string { return bound.Stranger(remote).Address },
	})
}

const maxScrapes = 4 // at a time: each builds the whole text. A caller leaves one to others

func scrapes(metrics http.Handler) http.Handler {
	places := &bound.Places{Lend: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context()) // nobody while no local apiserver is healthy
		place, ok := places.Take(bound.Caller(u, r.RemoteAddr), 1, maxScrapes)
		if !ok {
			http.Error(w, "too many scrapes are under way", http.StatusServiceUnavailable)
			return
		}
		defer place.Leave()
		metrics.ServeHTTP(w, r)
	})
}

func (s *server) countProcess() {
	local := prometheus.NewDesc("fairlead_local_apiserver_healthy",
		"1 if the local apiserver at this address is healthy, 0 if it is not or has not been probed yet.",
		[]string{"address"}, nil)
	metric.Register(s.metrics, append(s.held.Metrics(),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_build_info", Help: "1, with the build in the labels.",
			ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
		}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_draining", Help: "1 while this process drains and reports not ready.",
		}, func() float64 { return metric.Number(s.draining.Load()) }),
		metric.Gauges{All: []*prometheus.Desc{local}, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
			for _, e := range s.kube.list() { // a handful: --local-apiservers-from takes maxFollowed
				gauge(local, metric.Number(e.Health == registry.Healthy), e.Address)
			}
		}},
	)...)
}
