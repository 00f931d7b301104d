package main

import (
	"context"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// adminPages serves Fairlead's own pages. The health pages are open, because load balancers and
// kubelets have no credentials; guard protects all others.
func adminPages(livez, readyz http.Handler, metrics prometheus.Gatherer, own http.Handler, guard func(http.Handler) http.Handler) http.Handler {
	guarded := http.NewServeMux()
	guarded.Handle("/", own)
	guarded.Handle("GET /metrics", scrapes(promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})))
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

// localName names the local apiservers for their prober and on the pages.
const localName = pages.LocalName

// makePages makes the pages that show this process, on the admin port and below /fairlead/ on the
// front door.
func (d *door) makePages(context.Context) (err error) {
	host, _ := os.Hostname() // pages work without it
	d.pages, err = pages.New(pages.Config{
		Table: d.registry.Table, Explain: d.proxy.Explain, Failed: d.proxy.Failed, Tap: &d.taps,
		Certificates: d.certs.Status, Trust: d.trust.Status,
		Discovery: d.documents.discovery.Status, OpenAPI: d.documents.openapi.Status,
		LocalServers: d.localServers, LocalIdentity: d.o.localIdentity,
		Ready: func() error { return d.ready.Err(nil) }, Draining: d.draining.Active,
		Version: version, Replica: host, Cluster: clusterName(d.o.kubeconfig),
		Probed: func(apiService, address string) (ended time.Time, took time.Duration, fault string) {
			if apiService == localName {
				return d.localProber.Last(apiService, address)
			}
			return d.prober.Last(apiService, address)
		},
		Load: func(e *registry.Entry) (inFlight, longRunning int64, endpoints map[string]int64, said map[string]string) {
			if u := d.backends.Upstream(e); u != nil {
				return u.Load()
			}
			return 0, 0, nil, nil
		},
		Latencies: func(e *registry.Entry) []uint64 {
			if u := d.backends.Upstream(e); u != nil {
				return u.Latencies()
			}
			return nil
		},
	})
	d.loop("pages", d.pages.Run)
	return err
}

// adminEngine serves the admin port's HTTP/2 with the bounds of the front door. net/http's own
// server answers requests that RFC 9113 §8.2.2 calls malformed.
func (d *door) adminEngine(own http.Handler) *h2.Server {
	plan := h2.Plan{Serve: own}
	return h2.New(h2.Config{
		Decide:     func(*h2.ConnInfo, *h2.Head, func(h2.Plan)) (h2.Plan, bool) { return plan, true },
		MaxStreams: uint32(d.o.streamsPerConn), Shards: 1, Memory: d.held, Logger: d.log, //nolint:gosec // validated
	})
}

// maxScrapes bounds concurrent scrapes, because each builds the whole text. One caller leaves a
// place to others.
const maxScrapes = 4

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

// countProcess registers the metrics of the process itself.
func (d *door) countProcess(context.Context) error {
	d.held, d.gathered = hold.New(0), prometheus.Gatherers{d.metrics}
	if d.o.registry.etcd != nil {
		d.gathered = append(d.gathered, ofEtcd{})
	}
	local := prometheus.NewDesc("fairlead_local_apiserver_healthy", "1 if the local apiserver at this address is healthy, 0 if it is not or has not been probed yet.", []string{"address"}, nil)
	return metric.Register(d.metrics, "the process", append(d.held.Metrics(),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_build_info", Help: "1, with the build in the labels.", ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
		}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairlead_draining", Help: "1 while this process drains and reports not ready."}, func() float64 {
			return metric.Number(d.draining.Active())
		}),
		metric.Gauges{All: []*prometheus.Desc{local}, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
			for _, s := range d.localServers() { // the command line or the kubeconfig names only a handful
				gauge(local, metric.Number(s.Health == registry.Healthy), s.Address)
			}
		}},
	)...)
}
