package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// BenchmarkMany measures the processor time of one change in the whole process, with everything
// that follows the table except the prober, minus that of an idle process. It includes the
// simulated servers.
func BenchmarkMany(b *testing.B) {
	const n = 10_000
	for _, services := range []int{2000, 9000} { // few, and nearly one each: the process holds both ends of each connection, with 20,000 descriptors
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			c := &crowd{Server: apiserver.New(), apiServices: n, services: services}
			d := c.start(b)
			<-time.After(2 * time.Second) // the last ones that were woken finish
			for name, change := range map[string]func(i int){
				"endpoint": func(i int) { c.Put(c.slice(5, i%2 == 0)) },
				"verdict": func(i int) {
					e := d.registry.Table().Entries()[n/3]
					report := registry.Report{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}
					if i%2 == 0 {
						report.Health, report.Reason, report.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "no"
					}
					d.registry.Report(report)
				},
				"apiservice": func(i int) {
					if o := c.apiService(n); i%2 == 0 {
						c.Put(o)
					} else {
						c.Drop(apiserver.APIServices, "/"+o.Name)
					}
				},
			} {
				b.Run(name, func(b *testing.B) {
					// Most followers of the table pause for less than this, so that each sees every
					// change.
					const changes, gap = 10, 100 * time.Millisecond
					var costs []time.Duration
					for b.Loop() {
						idle, rest := used(func() { <-time.After(changes * gap) })
						busy, took := used(func() {
							for i := range changes {
								before := d.registry.Table()
								change(i)
								<-before.Superseded()
								<-time.After(gap)
							}
						})
						costs = append(costs, busy-time.Duration(float64(idle)*float64(took)/float64(rest)))
					}
					slices.Sort(costs)
					b.ReportMetric(costs[len(costs)/2].Seconds()*1000/changes, "cpu-ms/change")
					b.ReportMetric(0, "ns/op") // ns/op would measure the gaps
				})
			}
		})
	}
}

// used returns the processor time and the duration of f.
func used(f func()) (cpu, took time.Duration) {
	now := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for the own process
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before, begun := now(), time.Now()
	f()
	return now() - before, time.Since(begun)
}

// start runs a process on the crowd until it has probed everything.
func (c *crowd) start(b *testing.B) *door {
	b.Helper()
	d := buildDoor(b, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
		c.serve(b, o, ca)
		o.allowLoopback, o.publishEndpoints = true, false
	})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() { cancel(); running.Wait() })
	for name, run := range d.loops() {
		if name != "prober" {
			running.Go(func() { _ = run(ctx) })
		}
	}
	for waiting := c.apiServices; waiting > 0 || c.written.Load() < int64(c.apiServices); <-time.After(time.Second) {
		for _, e := range d.registry.Table().Entries() {
			for _, p := range e.Endpoints {
				d.registry.Report(registry.Report{Name: e.Name, Backend: e.Backend, Address: p.Address, Health: registry.Healthy})
			}
		}
		waiting = c.apiServices
		for _, s := range d.documents.discovery.Status() {
			if s.Reason == "" {
				waiting--
			}
		}
	}
	return d
}

// serve runs both servers until the test ends, and points the kubeconfig at the kube-apiserver.
func (c *crowd) serve(b testing.TB, o *options, ca *pki.CA) {
	b.Helper()
	serve := func(h http.Handler) string {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2, s.Config.ErrorLog = true, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		b.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		return s.URL
	}
	u := must.Get(url.Parse(serve(http.HandlerFunc(c.extension))))(b)
	port := must.Get(strconv.ParseInt(u.Port(), 10, 32))(b)
	c.port = int32(port)
	for i := range c.services {
		c.Put(c.service(i), c.slice(i, false))
	}
	for i := range c.apiServices {
		c.Put(c.apiService(i))
	}
	kubeconfig := must.Get(clientcmd.LoadFromFile(o.kubeconfig))(b)
	kubeconfig.Clusters["c"].Server = serve(c.local())
	must.Do(b, clientcmd.WriteToFile(*kubeconfig, o.kubeconfig))
}
