//go:build e2e

package konnectivity

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
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

// testThrough sends requests at the same time, a watch, upgrades, and asks for documents.
func (w *world) testThrough(t *testing.T) {
	if r, err := new(http.Client).Get("http://" + w.extension.Addr()); err == nil {
		t.Fatalf("reached without konnectivity: %s", r.Status)
	}
	for _, s := range w.sides {
		t.Run(s.name, func(t *testing.T) {
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() {
					if list, err := ask.Get(t.Context(), s.client, s.endpoint.URL+objects); err != nil || len(list) < 100_000 {
						t.Errorf("list: %d bytes, %v", len(list), err)
					}
				})
			}
			all.Wait()
			watch := must.Get(ask.Open(t.Context(), s.client, s.endpoint.URL+objects+"?watch=true", nil))(t)
			defer watch.Body.Close()
			w.extension.Emit()
			for text, part := "", make([]byte, 32<<10); !strings.Contains(text, "MODIFIED"); {
				n, err := watch.Body.Read(part)
				must.Do(t, err)
				text += string(part[:n])
			}
			for _, protocol := range []string{"websocket", "SPDY/3.1"} {
				w.echo(t, s, protocol)
			}
			for _, path := range []string{"/apis/" + widgets, "/openapi/v3/apis/" + widgets} {
				must.Do(t, ask.Serves(t.Context(), s.client, s.endpoint.URL+path))
			}
		})
	}
}

// echo sends a megabyte by an upgraded connection, which returns it.
func (w *world) echo(t *testing.T, s *side, protocol string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: suite.TLS(t, s.endpoint, w.Admin()), Protocols: ask.Only(false)}}
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.endpoint.URL+objects+"/widget-000/exec", nil))(t)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}
	res := must.Get(c.Do(r))(t)
	defer res.Body.Close()
	tunnel, ok := res.Body.(io.ReadWriteCloser)
	must.Be(t, res.StatusCode == http.StatusSwitchingProtocols && ok, "%s: %s", protocol, res.Status)
	sent := strings.Repeat("ahoy ", 200<<10)
	go func() { _, _ = io.WriteString(tunnel, sent) }() // ends with the tunnel
	back := make([]byte, len(sent))
	_, err := io.ReadFull(tunnel, back)
	must.Do(t, err)
	if string(back) != sent {
		t.Errorf("%s: what came back is not what was sent", protocol)
	}
}

const (
	rounds = 3                      // of each kill
	every  = 100 * time.Millisecond // between requests of a side
	away   = 5 * time.Second        // how long a killed part is away
	stuck  = 90 * time.Second       // how long an agent does not answer: more than a request's deadline of a minute
	fds    = 20                     // connections that the sides may keep in reserve afterwards
	latest = 30 * time.Second       // until the sides serve again: gRPC's longest pause of an agent is 10 s
	settle = 2 * time.Minute        // until what hung has ended: gRPC's dials last 30 s, HTTP/1.1's idle connections 90 s
)

type outcome struct {
	sent time.Time
	took time.Duration
	code int // zero: no answer
}

func (s *side) ask(t *testing.T) outcome {
	o := outcome{sent: time.Now()}
	if r, err := ask.Do(t.Context(), s.client, http.MethodGet, s.endpoint.URL+objects+"/widget-000", nil, ""); err == nil {
		o.code = r.Code
	}
	o.took = time.Since(o.sent)
	return o
}

// during sends requests until over is closed and one that was sent later is answered. It returns all outcomes, and
// when that was.
func (s *side) during(t *testing.T, over <-chan struct{}) (all []outcome, back time.Time) {
	outcomes, open := make(chan outcome, 10_000), 0
	tick := time.NewTicker(every)
	defer tick.Stop()
	var ended time.Time
	for back.IsZero() || open > 0 {
		select {
		case <-over:
			ended, over = time.Now(), nil
		case <-tick.C:
			if back.IsZero() {
				open++
				go func() { outcomes <- s.ask(t) }() // ends with the client's time limit
			}
		case o := <-outcomes:
			open--
			all = append(all, o)
			if back.IsZero() && o.code == http.StatusOK && over == nil && o.sent.After(ended) {
				back = time.Now()
			}
		}
	}
	return all, back
}

// outage sends requests by both sides while f runs and until both serve again.
func (w *world) outage(t *testing.T, f func()) {
	t.Helper()
	type result struct {
		all  []outcome
		back time.Time
	}
	over, results := make(chan struct{}), make([]result, len(w.sides))
	var sides sync.WaitGroup
	for i, s := range w.sides {
		sides.Go(func() { results[i].all, results[i].back = s.during(t, over) })
	}
	f()
	ended := time.Now()
	close(over)
	sides.Wait()
	for i, s := range w.sides {
		codes, longest, slow := map[int]int{}, time.Duration(0), 0
		for _, o := range results[i].all {
			codes[o.code]++
			if longest = max(longest, o.took); o.took > 10*time.Second {
				slow++
			}
		}
		after := results[i].back.Sub(ended).Round(time.Millisecond)
		t.Logf("%s: serves again after %v; answers %v, the longest after %v, %d after more than 10 s", s.name, after, codes,
			longest.Round(time.Millisecond), slow)
		if s.name == "Fairlead" && (after > latest || codes[0] > 0) {
			t.Errorf("Fairlead serves again after %v, and leaves %d requests without an answer", after, codes[0])
		}
	}
}

// kept checks that Fairlead has no more goroutines and descriptors than before f, after a while.
func (w *world) kept(t *testing.T, f func()) {
	t.Helper()
	var before [2][2]int
	for i, s := range w.sides {
		before[i][0], before[i][1] = s.metrics()
	}
	f()
	for i, s := range w.sides {
		at := func() (bool, string) {
			g, d := s.metrics()
			return g <= before[i][0]+100 && d <= before[i][1]+fds, fmt.Sprintf("%s has %d goroutines and %d descriptors, before %v", s.name, g, d, before[i])
		}
		_, now := at()
		t.Log(now)
		if s.name == "Fairlead" {
			suite.Eventually(t, settle, "nothing is left", at)
		}
		_, now = at()
		t.Log("later: " + now)
	}
}

func (w *world) testKilled(t *testing.T, p *cluster.Part) {
	w.kept(t, func() {
		for range rounds {
			w.outage(t, func() {
				p.Kill()
				suite.Pause(t, away)
				must.Do(t, p.Restart(t.Context()))
			})
		}
	})
}

// testStopped has an agent that stays connected and answers nothing (kubernetes-sigs/apiserver-network-proxy#855).
func (w *world) testStopped(t *testing.T) {
	_, before := w.sides[0].metrics()
	w.kept(t, func() {
		w.outage(t, func() {
			must.Do(t, w.agent.Signal(syscall.SIGSTOP))
			for range 3 {
				suite.Pause(t, stuck/3)
				for _, s := range w.sides {
					g, d := s.metrics()
					t.Logf("%s: %d goroutines, %d descriptors", s.name, g, d)
					if s.name == "Fairlead" && d > before+fds {
						t.Errorf("dials that nobody answers are kept: %d descriptors, before %d", d, before)
					}
				}
			}
			must.Do(t, w.agent.Signal(syscall.SIGCONT))
		})
	})
}

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
	netns.Up(t)
	netns.Hide(t, "/run/netns")
	netns.Add(t, "elsewhere", plane, node) // it has the pods
	netns.IP(t, "-n elsewhere address add "+pod+"/32 dev lo")
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
	connected := func(ctx context.Context) error { // the server says it, the agent's own port is elsewhere
		series, err := ask.Metrics(ctx, new(http.Client), "http://127.0.0.1:8095")
		if err == nil && series["konnectivity_network_proxy_server_ready_backend_connections"] < 1 {
			err = fmt.Errorf("no agent is connected")
		}
		return err
	}
	w.agent = must.Get(w.Run(t.Context(), cluster.Command{Name: "konnectivity-agent", Path: agent, Netns: "elsewhere", Ready: connected, Args: []string{
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
