//go:build e2e

package critical

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	// rounds is how often the third node starts, and late is how long after that its pod network comes.
	rounds = 3
	late   = 20 * time.Second
	// host is where etcd and HAProxy listen, and pod is the extension server's address.
	host, pod = "10.84.0.1", "10.85.0.1"
	// collection is the extension server's, and local is kube-apiserver's own.
	collection, local = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders", "/api/v1/namespaces/default/configmaps"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

type world struct {
	*cluster.Cluster
	fairlead string
	replicas []*cluster.Front
}

// node returns the network namespace of a node, from 1, and the address in it.
func node(i int) (name, address string) { return fmt.Sprintf("cp%d", i), fmt.Sprintf("10.83.%d.2", i) }

// newWorld starts kube-apiservers on three nodes, of which two have a pod network.
func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Hide(t, "/run/netns")
	netns.Up(t, "10.84.0.0/16", "10.85.0.0/16")
	w, nodes := &world{}, []string(nil)
	for i := 1; i <= 3; i++ {
		name, address := node(i)
		nodes = append(nodes, name)
		netns.Add(t, name, fmt.Sprintf("10.83.%d.1", i), address)
		netns.IP(t, fmt.Sprintf("-n %s route add 10.84.0.0/16 via 10.83.%d.1", name, i))
		if i < 3 {
			podNetwork(t, i, "add")
		}
	}
	dir := suite.Folder(t, "critical")
	w.fairlead = suite.Build(t, filepath.Join(dir, "bin"))
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, Loopback: host, APIServers: -1, Nodes: nodes})
	for i := range 3 {
		_, address := node(i + 1)
		must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], "--bind-address="+address, "--secure-port=6443", "--enable-aggregator-routing=true"))
	}
	return w
}

// podNetwork gives a node its route to the pods (add), or takes it away (delete).
func podNetwork(t *testing.T, i int, verb string) {
	t.Helper()
	name, _ := node(i)
	netns.IP(t, fmt.Sprintf("-n %s route %s 10.85.0.0/16 via 10.83.%d.1", name, verb, i))
}

// start runs a Fairlead on a node, before its own kube-apiserver, until it lives.
func (w *world) start(t *testing.T, i int) {
	t.Helper()
	name, address := node(i)
	kubeconfig := must.Get(w.Kubeconfig(w.EndpointOf(i-1), name, cluster.Leaf{User: "fairlead", Groups: []string{"system:masters"}}))(t)
	w.replicas = append(w.replicas, must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Name: "fairlead-" + name, Netns: name, Address: address, Port: 8443, AdminPort: 8444, Ready: "/livez",
		Args: []string{"--kubeconfig=" + kubeconfig, "--critical-apiservices=v1beta1.wardle.example.com", "--shutdown-delay-duration=3s"},
	}))(t))
}

// ready returns the nodes whose replicas are ready.
func (w *world) ready(t *testing.T) string {
	t.Helper()
	var all []string
	for i, r := range w.replicas {
		res, err := suite.Client(t, r.Admin, cluster.Credentials{}).Get(r.Admin.URL + "/readyz")
		if err != nil {
			continue
		}
		if name, _ := node(i + 1); res.StatusCode == http.StatusOK {
			all = append(all, name)
		}
		_ = res.Body.Close()
	}
	return strings.Join(all, " ")
}

// steady requires that exactly these replicas are ready all the time.
func (w *world) steady(t *testing.T, d time.Duration, want string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); suite.Pause(t, 250*time.Millisecond) {
		check.Same(t, want, w.ready(t), "the ready ones, %s before the end", time.Until(end))
	}
}

func (w *world) become(t *testing.T, want string) time.Duration {
	t.Helper()
	return suite.Eventually(t, time.Minute, want, func() (bool, string) { got := w.ready(t); return got == want, got })
}

// balance runs HAProxy before servers, and returns where it listens.
func (w *world) balance(t *testing.T, name string, port int, servers ...cluster.Endpoint) cluster.Endpoint {
	t.Helper()
	address := fmt.Sprintf("%s:%d", host, port)
	text := "listen front\n    bind " + address + "\n"
	for i, s := range servers {
		text += fmt.Sprintf("    server server%d %s check\n", i, strings.TrimPrefix(s.URL, "https://"))
	}
	must.Get(w.StartHAProxy(t.Context(), name, text, cluster.Listens(address)))(t)
	return cluster.Endpoint{URL: "https://" + address, CAFile: servers[0].CAFile}
}

// load sends a request for a path on a connection of its own, 50 times a second.
func (w *world) load(t *testing.T, front cluster.Endpoint, path string) *volley.Load {
	t.Helper()
	tlsConfig := suite.TLS(t, front, w.Admin())
	tlsConfig.ServerName = "kubernetes.default.svc"
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}}
	return (&volley.Load{Every: 20 * time.Millisecond, Clients: []*http.Client{c}, Make: func(int) (string, string, string) {
		return http.MethodGet, front.URL + path, ""
	}}).Start(t)
}

func failed(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil }

// A node's pod network comes late: only its replica is not ready, so no request fails. Then the
// extension server dies for all, for longer than the grace, and comes back: nothing changes.
func TestCritical(t *testing.T) {
	w := newWorld(t)
	sample := cluster.Backend{Namespace: "wardle", Service: "api", GroupVersions: []string{"wardle.example.com/v1beta1"}, Addresses: []string{pod}}
	extension := must.Get(w.StartExtension(t.Context(), "sample-apiserver", &sample))(t)
	w.start(t, 1)
	w.start(t, 2)
	w.become(t, "cp1 cp2")
	must.Do(t, w.WaitAvailable(t.Context(), w.EndpointOf(0), "wardle.example.com/v1beta1"))
	must.Do(t, w.WaitAvailable(t.Context(), w.EndpointOf(1), "wardle.example.com/v1beta1"))
	third := cluster.Endpoint{URL: strings.ReplaceAll(w.replicas[0].Endpoint.URL, "10.83.1", "10.83.3"), CAFile: w.replicas[0].Endpoint.CAFile}
	through := w.balance(t, "before-fairlead", 7001, w.replicas[0].Endpoint, w.replicas[1].Endpoint, third)
	directly := w.balance(t, "before-kube-apiserver", 7002, w.EndpointOf(0), w.EndpointOf(1), w.EndpointOf(2))
	suite.Pause(t, 2*time.Second) // until HAProxy has looked at all
	for round := range rounds {
		a := w.load(t, through, collection)
		if round == 0 {
			w.start(t, 3)
		} else { // the node starts anew
			must.Do(t, w.replicas[2].Part.Stop(time.Minute))
			podNetwork(t, 3, "delete")
			must.Do(t, w.APIServers[2].Restart(t.Context()))
			must.Do(t, w.replicas[2].Part.Restart(t.Context()))
		}
		b, began := w.load(t, directly, collection), time.Now() // not before its kube-apiserver is ready again
		w.steady(t, late, "cp1 cp2")
		podNetwork(t, 3, "add")
		took := w.become(t, "cp1 cp2 cp3")
		w.steady(t, 3*time.Second, "cp1 cp2 cp3")
		t.Logf("round %d at %s: ready %s after the pod network, %s after its start", round+1, suite.Commit(t), took, time.Since(began).Round(time.Second))
		volley.Judge(t, a.Stop(), 0, failed)
		shots := b.Stop()
		n := volley.Judge(t, shots, len(shots), func(s *volley.Shot) bool { return s.Code == http.StatusServiceUnavailable })
		check.Same(t, true, n != 0, "kube-apiserver's aggregator failed no request: this test shows nothing")
	}
	a, b, served := w.load(t, through, collection), w.load(t, directly, collection), w.load(t, through, local)
	extension.Kill()
	w.steady(t, 45*time.Second, "cp1 cp2 cp3")
	must.Do(t, extension.Restart(t.Context()))
	w.steady(t, 15*time.Second, "cp1 cp2 cp3")
	volley.Judge(t, served.Stop(), 0, failed)
	for _, l := range []*volley.Load{a, b} {
		shots := l.Stop()
		volley.Judge(t, shots, len(shots), failed)
	}
}
