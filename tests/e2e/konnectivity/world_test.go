//go:build e2e

package konnectivity

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// The control plane's host, the agent's, and a pod's, to which only the latter has a route.
const plane, node, pod = "10.81.0.1", "10.81.0.2", "10.82.0.1"

const (
	widgets = "widgets.example.com/v1"
	objects = "/apis/" + widgets + "/namespaces/default/widgets"
)

// world is a cluster behind konnectivity, and a Fairlead in front of it with the same egress selector.
type world struct {
	*cluster.Cluster
	proxy, agent *cluster.Part
	extension    *extension.Server
	sides        []*side
}

// side is a way to the extension server: Fairlead, or kube-apiserver's own aggregator.
type side struct {
	name     string
	endpoint cluster.Endpoint
	client   *http.Client
	metrics  func() (goroutines, descriptors int)
}

func TestKonnectivity(t *testing.T) {
	network(t)
	for _, mode := range []string{"grpc", "http-connect"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, mode)
			t.Run("through it", w.testThrough)
			t.Run("agent killed", func(t *testing.T) { w.testKilled(t, w.agent) })
			t.Run("server killed", func(t *testing.T) { w.testKilled(t, w.proxy) })
			t.Run("agent stopped", w.testStopped)
		})
	}
}

// network makes the namespace elsewhere, which has the pods.
func network(t *testing.T) {
	t.Helper()
	netns.Up(t)
	netns.Hide(t, "/run/netns")
	for _, command := range []string{
		"netns add elsewhere", "link add plane type veth peer name node", "link set node netns elsewhere",
		"addr add " + plane + "/24 dev plane", "link set plane up", "-n elsewhere link set lo up",
		"-n elsewhere addr add " + node + "/24 dev node", "-n elsewhere link set node up", "-n elsewhere addr add " + pod + "/32 dev lo",
	} {
		netns.IP(t, command)
	}
}

// elsewhere runs f in the namespace elsewhere: its sockets stay there.
func elsewhere(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		ns, err := os.Open("/run/netns/elsewhere")
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	must.Do(t, <-done)
}

func newWorld(t *testing.T, mode string) *world {
	t.Helper()
	server, agent := suite.Tool(t, "konnectivity-server"), suite.Tool(t, "konnectivity-agent")
	dir := suite.Folder(t, "konnectivity-"+mode)
	egress, socket := filepath.Join(dir, "egress.yaml"), filepath.Join(t.TempDir(), "socket")
	// kube-apiserver reads the file, and the keys that it names, when it starts.
	keys := t.TempDir()
	ca := pki.NewCA("konnectivity-ca")
	serving := ca.Issue(pki.Leaf{CommonName: "konnectivity-server", Names: []string{plane, "127.0.0.1"}})
	client := ca.Issue(pki.Leaf{CommonName: "konnectivity-client"})
	caFile, _, err := ca.WriteFiles(keys, "ca")
	must.Do(t, err)
	cert, key := must.Get2(serving.WriteFiles(keys, "serving"))(t)
	clientCert, clientKey := must.Get2(client.WriteFiles(keys, "client"))(t)
	transport := "proxyProtocol: GRPC, transport: {uds: {udsName: " + socket + "}}"
	args := []string{"--mode=" + mode, "--server-port=0", "--uds-name=" + socket}
	if mode != "grpc" {
		transport = fmt.Sprintf("proxyProtocol: HTTPConnect, transport: {tcp: {url: \"https://127.0.0.1:8090\", "+
			"tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}}}", caFile, clientCert, clientKey)
		args = []string{"--mode=" + mode, "--server-port=8090"}
		args = append(args, "--server-cert="+cert, "--server-key="+key, "--server-ca-cert="+caFile)
	}
	suite.Put(t, egress, "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n"+
		"egressSelections: [{name: cluster, connection: {"+transport+"}}]\n")
	fairlead := suite.Build(t, filepath.Join(dir, "bin"))
	w := &world{Cluster: suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{
		"--egress-selector-config-file=" + egress, "--enable-aggregator-routing=true", "--advertise-address=" + plane,
	}})}
	elsewhere(t, func() {
		w.extension = extension.Start(t, extension.Config{
			CA: ca, Address: pod + ":0", Names: []string{"widgets.konnectivity.svc"},
			RequestHeaderCA: suite.Pool(t, w.PKI.FrontProxy.CertFile), RejectWith: http.StatusUnauthorized,
		})
	})
	w.proxy = must.Get(w.Run(t.Context(), cluster.Command{
		Name: "konnectivity-server", Path: server, Ready: cluster.Endpoint{URL: "http://127.0.0.1:8092"}.Serves("/healthz", cluster.Credentials{}),
		Args: append(args, "--cluster-cert="+cert, "--cluster-key="+key, "--agent-port=8091", "--health-port=8092", "--admin-port=8095"),
	}))(t)
	script := filepath.Join(dir, "agent")
	must.Do(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec ip netns exec elsewhere %s \"$@\"\n", agent), 0o700))
	connected := func(ctx context.Context) error { // the server says it, the agent's own port is elsewhere
		series, err := ask.Metrics(ctx, new(http.Client), "http://127.0.0.1:8095")
		if err == nil && series["konnectivity_network_proxy_server_ready_backend_connections"] < 1 {
			err = fmt.Errorf("no agent is connected")
		}
		return err
	}
	w.agent = must.Get(w.Run(t.Context(), cluster.Command{Name: "konnectivity-agent", Path: script, Ready: connected, Args: []string{
		"--proxy-server-host=" + plane, "--proxy-server-port=8091", "--ca-cert=" + caFile,
	}}))(t)
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "konnectivity", Service: "widgets", Addresses: []string{pod}, Port: w.extension.Port(), CAFile: caFile, GroupVersions: []string{widgets},
	}))
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead, Args: []string{"--egress-selector-config-file=" + egress}}))(t)
	w.side(t, "Fairlead", front.Endpoint, front.Admin)
	w.side(t, "kube-apiserver", w.Endpoint(), w.Endpoint())
	return w
}

// side adds a way, once it serves. Its metrics are at another endpoint.
func (w *world) side(t *testing.T, name string, e, admin cluster.Endpoint) {
	t.Helper()
	must.Do(t, w.WaitAvailable(t.Context(), e, widgets))
	c, own := suite.Client(t, e, w.Admin()), suite.Client(t, admin, w.Admin())
	c.Timeout = 3 * time.Minute // more than any deadline, so that a request that hangs is seen
	w.sides = append(w.sides, &side{name, e, c, func() (int, int) {
		series := must.Get(ask.Metrics(t.Context(), own, admin.URL))(t)
		return int(series["go_goroutines"]), int(series["process_open_fds"])
	}})
}
