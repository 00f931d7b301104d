//go:build e2e

package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// port is the port of every extension server. Each has its own address.
const port = 8443

// backend is an APIService with its Service and endpoints.
type backend struct {
	w    *world
	name string // of its Service; unique
	host string // in its certificates

	gv         string // the only group-version that it serves
	apiService string // the name of its APIService
	widgets    string // the path of its objects

	addresses []string // of its endpoints
}

// newBackend only invents names; register makes the objects.
func (w *world) newBackend() *backend {
	name := w.name("backend")
	gv := name + ".faults.example.com/v1"
	return &backend{
		w: w, name: name, host: name + "." + namespace + ".svc",
		gv: gv, apiService: "v1." + name + ".faults.example.com", widgets: "/apis/" + gv + "/namespaces/default/widgets",
	}
}

// backend registers one with n extension servers in this process, each at a new address, and waits until d serves it.
func (d *door) backend(t *testing.T, n int) (*backend, []*extension.Server) {
	t.Helper()
	b := d.w.newBackend()
	var servers []*extension.Server
	var addresses []string
	for range n {
		number := b.w.numbers.Add(1)
		address := fmt.Sprintf("10.78.%d.%d", 1+number/250, 1+number%250)
		addresses = append(addresses, address)
		servers = append(servers, extension.Start(t, extension.Config{
			Address: at(address), GroupVersions: []string{b.gv}, Names: []string{b.host}, CA: b.w.ca,
			RequestHeaderCA: b.w.fronts, AllowedNames: []string{"front-proxy-client"}, RejectWith: http.StatusUnauthorized,
		}))
	}
	b.register(t, addresses...)
	b.await(t, d)
	return b, servers
}

// at is where the server with an address listens.
func at(address string) string { return fmt.Sprintf("%s:%d", address, port) }

// asExtension marks the environment of a process of this program that is an extension server.
const asExtension = "FAIRLEAD_FAULTS_EXTENSION"

// serveExtension runs that process until it is killed.
func serveExtension(args []string) (err error) {
	defer try.Catch(&err)
	cfg := extension.Config{Address: args[0], GroupVersions: args[1:2], Names: args[2:3], AllowedNames: []string{"front-proxy-client"}, RejectWith: http.StatusUnauthorized}
	cfg.CA = try.Get(pki.ReadCA(args[3], args[4]))
	cfg.RequestHeaderCA = try.Get(certutil.NewPool(args[5]))
	try.Get(extension.New(cfg))
	select {}
}

// start runs an extension server on a host: a process, which can be killed.
func (b *backend) start(t *testing.T, h *host) *cluster.Part {
	t.Helper()
	p := must.Get(b.w.Run(t.Context(), cluster.Command{
		Name: b.w.name("extension"), Path: "/bin/sh", Env: []string{asExtension + "=1"},
		// The shell finds ip, whose folder varies; both replace themselves by exec.
		Args: []string{
			"-c", `exec ip netns exec "$@"`, "sh", h.name, must.Get(os.Executable())(t),
			at(h.address), b.gv, b.host, b.w.caCert, b.w.caKey, b.w.PKI.FrontProxy.CertFile,
		},
		Ready: cluster.Listens(at(h.address)),
	}))(t)
	t.Cleanup(p.Kill)
	return p
}

// register makes the backend's objects, and deletes its APIService with the test.
func (b *backend) register(t *testing.T, addresses ...string) {
	t.Helper()
	b.addresses = addresses
	must.Do(t, b.w.Register(t.Context(), cluster.Backend{
		Namespace: namespace, Service: b.name, Port: port, Addresses: addresses, CAFile: b.w.caCert, GroupVersions: []string{b.gv},
	}))
	t.Cleanup(func() {
		_ = b.w.services.Delete(context.WithoutCancel(t.Context()), b.apiService, metav1.DeleteOptions{})
	})
}

// verdict is the name of the metric that says whether it is unavailable.
func (b *backend) verdict() string {
	return fmt.Sprintf("aggregator_unavailable_apiservice{name=%q}", b.apiService)
}

func (b *backend) unavailable(d *door) bool { return d.scrape()[b.verdict()] != 0 }

// healthy returns the metric of one endpoint's health.
func (b *backend) healthy(d *door, address string) bool {
	return d.scrape()[fmt.Sprintf("fairlead_endpoint_healthy{endpoint=%q,name=%q}", at(address), b.apiService)] == 1
}

// await waits until Fairlead serves the backend and all its endpoints are healthy.
func (b *backend) await(t *testing.T, d *door) {
	t.Helper()
	eventually(t, b.name+" is available", func() bool {
		v, known := d.scrape()[b.verdict()]
		return known && v == 0 && !slices.ContainsFunc(b.addresses, func(a string) bool { return !b.healthy(d, a) })
	})
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
	const link = "02:00:00:00:00:02" // the host's link address
	netns.IP(t, "netns add "+x.name)
	netns.IP(t, fmt.Sprintf("link add veth%d type veth peer name eth0 address %s netns %s", n, link, x.name))
	netns.IP(t, fmt.Sprintf("addr add 10.77.%d.1/24 dev veth%d", n, n))
	netns.IP(t, fmt.Sprintf("link set veth%d up", n))
	netns.IP(t, "-n "+x.name+" link set lo up")
	netns.IP(t, "-n "+x.name+" link set eth0 up")
	x.plug(t)
	// The node never resolves the host's link address, so packets also leave when the host is gone:
	// they are lost instead of reported as unreachable.
	netns.IP(t, fmt.Sprintf("neigh replace %s lladdr %s dev veth%d nud permanent", x.address, link, n))
	return x
}

// plug gives the host its address.
func (h *host) plug(t *testing.T) {
	t.Helper()
	netns.IP(t, "-n "+h.name+" addr replace "+h.address+"/24 dev eth0")
}

// unplug drops every packet to and from the host, also of open connections, because the host no
// longer has the address. Its processes continue.
func (h *host) unplug(t *testing.T) {
	t.Helper()
	netns.IP(t, "-n "+h.name+" addr del "+h.address+"/24 dev eth0")
}
