//go:build e2e

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// port is the port of every extension server. Each has its own address.
const port = 8443

// backend is an APIService with its Service and endpoints.
type backend struct {
	w     *world
	name  string // of its Service; unique
	group string

	endpoints []string // registered addresses
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

// backend registers one with n extension servers in this process, each at a new address, and waits
// until d serves it.
func (d *door) backend(t *testing.T, n int) (*backend, []*extension.Server) {
	t.Helper()
	b := d.w.newBackend()
	var servers []*extension.Server
	var addresses []string
	for range n {
		number := b.w.numbers.Add(1)
		addresses = append(addresses, fmt.Sprintf("10.78.%d.%d:%d", 1+number/250, 1+number%250, port))
		servers = append(servers, extension.Start(t, extension.Config{
			Address: addresses[len(addresses)-1], GroupVersions: []string{b.gv()}, Names: b.names(), CA: b.w.ca,
			RequestHeaderCA: b.w.fronts, AllowedNames: []string{"front-proxy-client"}, RejectWith: http.StatusUnauthorized,
		}))
	}
	b.register(t, addresses...)
	b.await(t, d)
	return b, servers
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
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port))}},
	}
	for _, a := range addresses {
		host, _, _ := net.SplitHostPort(a)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{host}})
	}
	b.endpoints = addresses
	must.Get(b.w.core.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{}))(t)
	must.Get(b.w.groups.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: b.apiService()},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: b.name}, Group: b.group, Version: "v1", CABundle: b.w.ca.PEM(),
			GroupPriorityMinimum: 1000, VersionPriority: 15,
		},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = b.w.groups.ApiregistrationV1().APIServices().Delete(context.WithoutCancel(t.Context()), b.apiService(), metav1.DeleteOptions{})
	})
}

// verdict is the name of the metric that says whether it is unavailable.
func (b *backend) verdict() string {
	return fmt.Sprintf("aggregator_unavailable_apiservice{name=%q}", b.apiService())
}

func (b *backend) unavailable(d *door) bool { return d.scrape()[b.verdict()] != 0 }

// healthy returns the metric of one endpoint's health.
func (b *backend) healthy(d *door, address string) bool {
	return d.scrape()[fmt.Sprintf("fairlead_endpoint_healthy{endpoint=%q,name=%q}", address, b.apiService())] == 1
}

// await waits until Fairlead serves the backend and all its endpoints are healthy.
func (b *backend) await(t *testing.T, d *door) {
	t.Helper()
	eventually(t, b.name+" is available", func() bool {
		for _, e := range b.endpoints {
			if !b.healthy(d, e) {
				return false
			}
		}
		v, known := d.scrape()[b.verdict()]
		return known && v == 0
	})
}

// nodeAddress is the node's own. The node has all of 10.78/16: each endpoint in this process has
// its own address there.
const nodeAddress = "10.78.0.1"

// network makes this process's namespace a node: its addresses, and a place for the names of its
// hosts' namespaces.
func network(t *testing.T) {
	t.Helper()
	netns.Hide(t, "/run/netns") // where ip netns keeps them
	netns.Up(t, "10.78.0.0/16")
}

// ip runs iproute2.
func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// host is a machine next to the node: a namespace connected to it.
type host struct {
	name    string
	address string
}

// addHost makes one.
func (w *world) addHost(t *testing.T) *host {
	t.Helper()
	n := w.hosts.Add(1)
	x := &host{name: fmt.Sprintf("host%d", n), address: fmt.Sprintf("10.77.%d.2", n)}
	ip(t, "netns add "+x.name)
	ip(t, fmt.Sprintf("link add veth%d type veth peer name eth0 netns %s", n, x.name))
	ip(t, fmt.Sprintf("addr add 10.77.%d.1/24 dev veth%d", n, n))
	ip(t, fmt.Sprintf("link set veth%d up", n))
	ip(t, "-n "+x.name+" link set lo up")
	ip(t, "-n "+x.name+" link set eth0 up")
	x.plug(t)
	// The node never resolves the host's link address, so packets also leave when the host is gone:
	// they are lost instead of reported as unreachable.
	link := strings.Fields(ip(t, "-n "+x.name+" -br link show dev eth0"))
	ip(t, fmt.Sprintf("neigh replace %s lladdr %s dev veth%d nud permanent", x.address, link[2], n))
	return x
}

// plug gives the host its address.
func (h *host) plug(t *testing.T) {
	t.Helper()
	ip(t, "-n "+h.name+" addr replace "+h.address+"/24 dev eth0")
}

// unplug drops every packet to and from the host, also of open connections, because the host no
// longer has the address. Its processes continue.
func (h *host) unplug(t *testing.T) {
	t.Helper()
	ip(t, "-n "+h.name+" addr del "+h.address+"/24 dev eth0")
}
