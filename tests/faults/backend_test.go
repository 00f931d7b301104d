//go:build e2e

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// port is the port of every extension server. Each has its own address.
const port = 8443

// backend is an APIService with its Service and endpoints.
type backend struct {
	w     *world
	name  string // of its Service; unique
	group string
	// slice holds the endpoints, in the order of the addresses given.
	slice *discoveryv1.EndpointSlice
}

// gv is the only group-version that it serves.
func (b *backend) gv() string { return b.group + "/v1" }

// apiService is the name of its APIService.
func (b *backend) apiService() string { return "v1." + b.group }

// widgets is the path of its objects.
func (b *backend) widgets() string { return "/apis/" + b.gv() + "/namespaces/default/widgets" }

// names are those of its certificates.
func (b *backend) names() []string { return []string{b.name + "." + namespace + ".svc"} }

// newBackend only invents names; register makes the objects.
func (w *world) newBackend() *backend {
	name := w.name("backend")
	return &backend{w: w, name: name, group: name + ".faults.example.com"}
}

// backend registers one with n extension servers in this process, and waits until d serves it.
func (d *door) backend(t *testing.T, n int, cfg extension.Config) (*backend, []*extension.Server) {
	t.Helper()
	b := d.w.newBackend()
	servers := b.serve(t, n, cfg)
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Addr())
	}
	b.register(t, addresses...)
	b.await(t, d)
	return b, servers
}

// serve starts n extension servers in this process, each at a new address.
func (b *backend) serve(t *testing.T, n int, cfg extension.Config) []*extension.Server {
	t.Helper()
	cfg.GroupVersions, cfg.Names, cfg.CA = append(cfg.GroupVersions, b.gv()), append(cfg.Names, b.names()...), b.w.ca
	cfg.RequestHeaderCA, cfg.AllowedNames, cfg.RejectWith = b.w.fronts, []string{"front-proxy-client"}, 401
	var list []*extension.Server
	for range n {
		cfg.Address = b.w.address()
		list = append(list, extension.Start(t, cfg))
	}
	return list
}

// address returns a new address of the node.
func (w *world) address() string {
	n := w.number("address")
	return net.JoinHostPort(fmt.Sprintf("10.78.%d.%d", 1+n/250, 1+n%250), fmt.Sprint(port))
}

// process is an extension server that can be killed: a process on its own host.
type process struct {
	*cluster.Part
	host *host
}

// addr is where it serves.
func (p *process) addr() string { return net.JoinHostPort(p.host.address, fmt.Sprint(port)) }

// asExtension marks the environment of a process of this program that is an extension server.
const asExtension = "FAIRLEAD_FAULTS_EXTENSION"

// serveExtension runs that process until it is killed.
func serveExtension(args []string) error {
	cfg := extension.Config{Address: args[0], GroupVersions: args[1:2], Names: args[2:3], AllowedNames: []string{"front-proxy-client"}, RejectWith: http.StatusUnauthorized}
	var err1, err2 error
	cfg.CA, err1 = pki.ReadCA(args[3], args[4])
	cfg.RequestHeaderCA, err2 = certutil.NewPool(args[5])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if _, err := extension.New(cfg); err != nil {
		return err
	}
	select {}
}

// start runs an extension server on a host.
func (b *backend) start(t *testing.T, h *host) *process {
	t.Helper()
	p := &process{host: h}
	p.Part = must.Get(b.w.Run(t.Context(), cluster.Command{
		Name: b.w.name("extension"), Path: "/bin/sh", Env: []string{asExtension + "=1"},
		// The shell finds ip, whose folder varies; both replace themselves by exec.
		Args: []string{
			"-c", `exec ip netns exec "$@"`, "sh", h.name, must.Get(os.Executable())(t),
			p.addr(), b.gv(), b.names()[0], b.w.caCert, b.w.caKey, b.w.PKI.FrontProxy.CertFile,
		},
		Ready: cluster.Listens(p.addr()),
	}))(t)
	t.Cleanup(p.Kill)
	return p
}

// register makes the backend's objects. The Service is headless: kube-apiserver's own aggregator
// cannot dial it, so all that servers receive comes from Fairlead.
func (b *backend) register(t *testing.T, addresses ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: b.name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: b.name}}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "https", Port: 443}},
	}}
	must.Get(b.w.core.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}))(t)
	b.slice = &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port))}},
	}
	for _, a := range addresses {
		b.slice.Endpoints = append(b.slice.Endpoints, ready(a))
	}
	b.slice = must.Get(b.w.core.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), b.slice, metav1.CreateOptions{}))(t)
	must.Get(b.w.groups.ApiregistrationV1().APIServices().Create(t.Context(), b.object(b.group), metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = b.w.groups.ApiregistrationV1().APIServices().Delete(context.WithoutCancel(t.Context()), b.apiService(), metav1.DeleteOptions{})
	})
}

// object returns an APIService of group that b's Service serves.
func (b *backend) object(group string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + group},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: b.name}, Group: group, Version: "v1", CABundle: b.w.ca.PEM(),
			GroupPriorityMinimum: 1000, VersionPriority: 15,
		},
	}
}

func ready(address string) discoveryv1.Endpoint {
	host, _, _ := net.SplitHostPort(address)
	return discoveryv1.Endpoint{
		Addresses:  []string{host},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
}

// update changes the endpoints.
func (b *backend) update(t *testing.T, change func(*discoveryv1.EndpointSlice)) {
	t.Helper()
	change(b.slice)
	b.slice = must.Get(b.w.core.DiscoveryV1().EndpointSlices(namespace).Update(t.Context(), b.slice, metav1.UpdateOptions{}))(t)
}

// unavailable returns the metric of the APIService's verdict.
func (b *backend) unavailable(d *door) bool {
	return d.scrape()[fmt.Sprintf("aggregator_unavailable_apiservice{name=%q}", b.apiService())] != 0
}

// healthy returns the metric of one endpoint's health.
func (b *backend) healthy(d *door, address string) bool {
	return d.scrape()[fmt.Sprintf("fairlead_endpoint_healthy{endpoint=%q,name=%q}", address, b.apiService())] == 1
}

// inFlight returns how many of the backend's places are in use.
func (b *backend) inFlight(d *door) float64 {
	return d.scrape()[fmt.Sprintf("fairlead_backend_requests_in_flight{kind=%q,name=%q}", "request", b.apiService())]
}

// await waits until Fairlead serves the backend and all its endpoints are healthy.
func (b *backend) await(t *testing.T, d *door) {
	t.Helper()
	eventually(t, 30*time.Second, b.name+" is available", func() bool {
		s := d.scrape()
		for _, e := range b.slice.Endpoints {
			if s[fmt.Sprintf("fairlead_endpoint_healthy{endpoint=%q,name=%q}", net.JoinHostPort(e.Addresses[0], fmt.Sprint(port)), b.apiService())] != 1 {
				return false
			}
		}
		v, known := s[fmt.Sprintf("aggregator_unavailable_apiservice{name=%q}", b.apiService())]
		return known && v == 0
	})
}
