package main

import (
	"net/http"
	"net/http/pprof"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminPages are Fairlead's own pages. Health is open, because load balancers and kubelets have no credentials; guard sees to the rest.
func adminPages(livez, readyz http.Handler, metrics prometheus.Gatherer, guard func(http.Handler) http.Handler) http.Handler {
	guarded := http.NewServeMux()
	guarded.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	guarded.HandleFunc("/debug/pprof/", pprof.Index)
	guarded.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	guarded.HandleFunc("/debug/pprof/profile", pprof.Profile)
	guarded.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	guarded.HandleFunc("/debug/pprof/trace", pprof.Trace)

	mux := http.NewServeMux()
	mux.Handle("/livez", livez)
	mux.Handle("/livez/", livez)
	mux.Handle("/readyz", readyz)
	mux.Handle("/readyz/", readyz)
	mux.Handle("/", guard(guarded))
	return mux
}

// maxScrapes bounds concurrent scrapes: each builds the whole text.
const maxScrapes = 4

func newMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_build_info", Help: "1, with the build in the labels.", ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	return r
}
