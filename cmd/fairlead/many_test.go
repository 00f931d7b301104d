package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// crowd is a kube-apiserver with 10,000 APIServices on 2,000 Services, as far as this process uses
// it, and the server behind all of them.
type crowd struct {
	*apiserver.Server
	port    int32
	written atomic.Int64 // by this process: conditions, Leases, Events
}

const apiServices, services = 10_000, 2000

func serviceOf(i int) metav1.ObjectMeta {
	name := fmt.Sprintf("s%d", i%services)
	return metav1.ObjectMeta{Namespace: "many", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
}

func apiService(i int) *apiregistrationv1.APIService {
	group := fmt.Sprintf("group%d.example.com", i)
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "many", Name: serviceOf(i).Name},
	}}
}

// slice returns a Service's EndpointSlice, optionally with a second endpoint.
func (c *crowd) slice(i int, second bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: serviceOf(i), AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: &c.port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}, {Addresses: []string{"127.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &second}}},
	}
}

// ServeHTTP tells a Service's server from the kube-apiserver by the TLS server name.
func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const groups = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[%s]}`
	const group = `{"metadata":{"name":"group%d.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[%s,%s]}]}`
	const resource = `{"resource":%q,"singularResource":"thing","scope":"Namespaced","verbs":["create","delete","get","list","patch","update","watch"],` +
		`"subresources":[{"subresource":"status","verbs":["get","patch","update"]}]}`
	first, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.TLS.ServerName, "s"), ".many.svc"))
	kind := "application/json"
	if strings.Contains(r.Header.Get("Accept"), "APIGroupDiscoveryList") {
		kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	}
	text := map[string]string{
		"/api": `{"kind":"APIVersions","versions":["v1"]}`, "/apis": `{"kind":"APIVersions","versions":["v1"]}`, "/openapi/v3": `{"paths":{}}`, "/readyz": "ok",
		"/openapi/v2": `{"swagger":"2.0","info":{"title":"Kubernetes"},"paths":{}}`,
	}[r.URL.Path]
	switch {
	case r.Method != http.MethodGet: // it accepts every write
		c.written.Add(1)
		if kind = r.Header.Get("Content-Type"); strings.HasSuffix(kind, "patch+json") || strings.HasSuffix(kind, "patch+yaml") {
			kind = "application/json"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.Copy(w, r.Body)
	case r.Header.Get("If-None-Match") != "":
		w.WriteHeader(http.StatusNotModified)
	case err == nil && r.URL.Path != "/apis":
		http.NotFound(w, r)
	case text == "":
		c.Server.ServeHTTP(w, r)
	default:
		var all []string
		for i := first; err == nil && i <= apiServices; i += services { // the last APIService comes and goes
			all = append(all, fmt.Sprintf(group, i, fmt.Sprintf(resource, "things"), fmt.Sprintf(resource, "others")))
		}
		if kind != "application/json" {
			text = fmt.Sprintf(groups, strings.Join(all, ","))
		}
		if strings.HasPrefix(r.URL.Path, "/api") {
			w.Header().Set("ETag", `"1"`)
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, text)
	}
}

// BenchmarkMany measures the processor time of one change in the whole process, with everything that follows the table
// except the prober, minus that of an idle process. It includes the simulated servers.
func BenchmarkMany(b *testing.B) {
	c := &crowd{Server: apiserver.New()}
	d := c.start(b)
	<-time.After(2 * time.Second) // the last ones that were woken finish
	for name, change := range map[string]func(i int){
		"endpoint": func(i int) { c.Put(c.slice(5, i%2 == 0)) },
		"verdict": func(i int) {
			e := d.registry.Table().Entries()[apiServices/3]
			report := registry.Report{Name: e.Name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: e.Endpoints[0].Address, Health: registry.Healthy}}
			if i%2 == 0 {
				report.Health, report.Reason, report.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "no"
			}
			d.registry.Report(report)
		},
		"apiservice": func(i int) {
			if o := apiService(apiServices); i%2 == 0 {
				c.Put(o)
			} else {
				c.Drop(apiserver.APIServices, "/"+o.Name)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			// Most followers of the table pause for less than this, so that each sees every change.
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
func (c *crowd) start(b *testing.B) *server {
	b.Helper()
	s := serverAt(b, "127.0.0.1", c.ServeHTTP)
	c.port = int32(s.Listener.Addr().(*net.TCPAddr).Port)
	for i := range services {
		c.Put(&corev1.Service{ObjectMeta: serviceOf(i), Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}, c.slice(i, false))
	}
	for i := range apiServices {
		c.Put(apiService(i))
	}
	dir := b.TempDir()
	policy := writeFile(b, filepath.Join(dir, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	d := doorBefore(b, s.URL, "--allow-loopback-backends", "--write-status", "--emit-events",
		"--access-log="+filepath.Join(dir, "access.log"), "--audit-log-path="+filepath.Join(dir, "audit.log"), "--audit-policy-file="+policy)
	for name, run := range d.loops {
		if name != "prober" {
			must.Run(b, func(ctx context.Context) error { _ = run(ctx); return ctx.Err() })
		}
	}
	for waiting := apiServices; waiting > 0 || c.written.Load() < apiServices; <-time.After(time.Second) {
		for _, e := range d.registry.Table().Entries() {
			for _, p := range e.Endpoints {
				d.registry.Report(registry.Report{Name: e.Name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: p.Address, Health: registry.Healthy}})
			}
		}
		waiting = apiServices
		for _, s := range d.discovery.Status() {
			if s.Reason == "" {
				waiting--
			}
		}
	}
	return d
}
