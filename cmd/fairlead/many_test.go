package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

type object = map[string]any

// crowd is a kube-apiserver, as far as this process asks it, with very many APIServices, and the one server behind all their Services.
type crowd struct {
	apiServices, services int
	annotations           object // of each APIService

	watches sync.Map // :: path → chan object
	port    int
}

func (c *crowd) service(i int) string { return fmt.Sprintf("s%d", i%c.services) }

func (c *crowd) apiService(i int) object {
	group := fmt.Sprintf("group%d.example.com", i)
	return object{"metadata": object{"name": "v1." + group, "annotations": c.annotations}, "spec": object{
		"group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 1, "insecureSkipTLSVerify": true,
		"service": object{"namespace": "many", "name": c.service(i), "port": 443},
	}}
}

func (c *crowd) slice(i int, terminating bool) object {
	return object{
		"metadata":    object{"namespace": "many", "name": c.service(i), "labels": object{"kubernetes.io/service-name": c.service(i)}},
		"addressType": "IPv4", "ports": []object{{"name": "https", "port": c.port}},
		"endpoints": []object{{"addresses": []string{"127.0.0.1"}}, {"addresses": []string{"127.0.0.2"}, "conditions": object{"ready": terminating}}},
	}
}

func (c *crowd) list(path string) (items []object) {
	switch path {
	case "/apis/apiregistration.k8s.io/v1/apiservices":
		for i := range c.apiServices {
			items = append(items, c.apiService(i))
		}
	case "/api/v1/services":
		for i := range c.services {
			items = append(items, object{"metadata": object{"namespace": "many", "name": c.service(i)}, "spec": object{
				"clusterIP": "None", "ports": []object{{"name": "https", "port": 443}},
			}})
		}
	case "/apis/discovery.k8s.io/v1/endpointslices":
		for i := range c.services {
			items = append(items, c.slice(i, false))
		}
	}
	return items
}

// answer answers for the kube-apiserver if local, else for an extension server of the old kind.
func (c *crowd) answer(w http.ResponseWriter, r *http.Request, local bool) {
	write := func(contentType string, body any) {
		w.Header().Set("Content-Type", contentType)
		_ = json.NewEncoder(w).Encode(body)
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Query().Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		write("application/json", object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422})
	case r.URL.Query().Get("watch") != "":
		events := make(chan object, 1)
		c.watches.Store(r.URL.Path, events)
		w.Header().Set("Content-Type", "application/json")
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case e := <-events:
				_ = json.NewEncoder(w).Encode(e)
			case <-r.Context().Done():
				return
			}
		}
	case c.list(r.URL.Path) != nil:
		kind := map[string][]string{
			"apiservices": {"APIServiceList", "apiregistration.k8s.io/v1"}, "services": {"ServiceList", "v1"}, "endpointslices": {"EndpointSliceList", "discovery.k8s.io/v1"},
		}[parts[len(parts)-1]]
		write("application/json", object{"kind": kind[0], "apiVersion": kind[1], "metadata": object{"resourceVersion": "1"}, "items": c.list(r.URL.Path)})
	case local && (r.URL.Path == "/apis" || r.URL.Path == "/api"):
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"1"`)
		const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
		if strings.Contains(r.Header.Get("Accept"), "APIGroupDiscoveryList") {
			write(aggregated, object{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": []object{}})
			return
		}
		write("application/json", object{"kind": "APIVersions", "versions": []string{"v1"}})
	case len(parts) == 3 && parts[0] == "apis":
		var resources []object
		for _, name := range []string{"things", "things/status", "others", "others/status"} {
			resources = append(resources, object{"name": name, "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": []string{"create", "delete", "get", "list", "patch", "update", "watch"}})
		}
		write("application/json", object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": parts[1] + "/" + parts[2], "resources": resources})
	case strings.HasSuffix(r.URL.Path, "configmaps"):
		write("application/json", object{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": object{"resourceVersion": "1"}})
	case local && r.URL.Path == "/openapi/v3":
		write("application/json", object{"paths": object{}})
	case local && r.URL.Path == "/openapi/v2":
		write("application/json", object{"swagger": "2.0", "info": object{"title": "Kubernetes"}, "paths": object{}})
	default:
		http.NotFound(w, r)
	}
}

// tell sends an event to whoever watches.
func (c *crowd) tell(b *testing.B, path, kind string, o object, revision int) {
	o["metadata"].(object)["resourceVersion"] = strconv.Itoa(revision)
	events, ok := c.watches.Load(path)
	if !ok {
		b.Fatalf("nobody watches %s", path)
	}
	switch {
	case strings.HasSuffix(path, "apiservices"):
		o["apiVersion"], o["kind"] = "apiregistration.k8s.io/v1", "APIService"
	case strings.HasSuffix(path, "endpointslices"):
		o["apiVersion"], o["kind"] = "discovery.k8s.io/v1", "EndpointSlice"
	}
	events.(chan object) <- object{"type": kind, "object": o}
}

// BenchmarkMany is what a change costs the whole process, with everybody who follows the table but the prober: processor time per change, above what it takes when
// nothing changes, and the memory of it all.
func BenchmarkMany(b *testing.B) {
	const n = 10_000
	for _, services := range []int{2000, n} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			c := &crowd{apiServices: n, services: services}
			d := c.start(b)
			revision := 1
			for name, change := range map[string]func(i int){
				"endpoint": func(i int) {
					c.tell(b, "/apis/discovery.k8s.io/v1/endpointslices", "MODIFIED", c.slice(5, i%2 == 0), revision)
				},
				"verdict": func(i int) {
					e := d.registry.Table().Entries()[n/3]
					report := registry.Report{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}
					if i%2 == 0 {
						report.Health, report.Reason, report.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "no"
					}
					d.registry.Report(report)
				},
				"apiservice": func(i int) {
					c.tell(b, "/apis/apiregistration.k8s.io/v1/apiservices", []string{"ADDED", "DELETED"}[i%2], c.apiService(n), revision)
				},
			} {
				b.Run(name, func(b *testing.B) {
					const gap = 250 * time.Millisecond // the longest that one who follows the table rests
					idle := used(func() { <-time.After(40 * gap) })
					sum, waited := time.Duration(0), time.Duration(0)
					for i := 0; b.Loop(); i++ {
						revision++
						before := d.registry.Table()
						sum += used(func() { change(i); <-before.Superseded(); <-time.After(gap) })
						waited += gap
					}
					sum -= time.Duration(float64(idle) * float64(waited) / float64(40*gap))
					b.ReportMetric(sum.Seconds()*1000/float64(b.N), "cpu-ms/op")
					b.ReportMetric(0, "ns/op") // it is the gap
				})
			}
		})
	}
}

// used is how much processor time the process takes while f runs.
func used(f func()) time.Duration {
	now := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // of oneself: cannot fail
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := now()
	f()
	return now() - before
}

// start runs a process before the crowd, until all is known of all.
func (c *crowd) start(b *testing.B) *door {
	b.Helper()
	d := buildDoor(b, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
		serve := func(local bool) *httptest.Server {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, local) }))
			s.EnableHTTP2, s.Config.ErrorLog = true, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
			s.StartTLS()
			b.Cleanup(func() { s.CloseClientConnections(); s.Close() })
			return s
		}
		u, err := url.Parse(serve(false).URL)
		if err != nil {
			b.Fatal(err)
		}
		if c.port, err = strconv.Atoi(u.Port()); err != nil {
			b.Fatal(err)
		}
		kubeconfig, err := clientcmd.LoadFromFile(o.kubeconfig)
		if err != nil {
			b.Fatal(err)
		}
		kubeconfig.Clusters["c"].Server = serve(true).URL
		if err := clientcmd.WriteToFile(*kubeconfig, o.kubeconfig); err != nil {
			b.Fatal(err)
		}
		o.allowLoopback, o.writeStatus, o.emitEvents, o.publishEndpoints = true, false, false, false
	})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() { cancel(); running.Wait() })
	for name, run := range d.loops() {
		if name != "prober" {
			running.Go(func() { _ = run(ctx) })
		}
	}
	for waiting := c.apiServices; waiting > 0; <-time.After(time.Second) {
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
	<-time.After(2 * time.Second) // what was woken last
	return d
}
