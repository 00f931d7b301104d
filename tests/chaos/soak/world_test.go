//go:build e2e

package soak

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	namespace = "soak"
	// drainDelay is how long a door continues to serve after SIGTERM. Its readiness is checked more
	// often, as a load balancer would.
	drainDelay = 2 * time.Second
	// requestTimeout is Fairlead's timeout for requests to backends: short, so that hung ones do not pile up.
	requestTimeout = 10 * time.Second
	watchers       = 9 // how many watches are open at any time
)

// world is the whole environment: a control plane, groups with their backends, two doors in front, and callers.
type world struct {
	*cluster.Cluster

	t       *testing.T // for code before and after the torment
	checker *checker
	journal *slog.Logger
	fronts  *x509.CertPool // verifies front proxies
	kube    []*http.Client // an administrator's, of each kube-apiserver, past the doors
	groups  []*group
	doors   [2]*door
	callers []*caller
	asked   atomic.Uint64 // tasks drawn

	mu    sync.Mutex // guards lines and what the tormentors change: the fields of groups and sites that say so
	lines map[line]*http.Transport
}

// line is a set of connections, of one caller or shared by several.
type line struct {
	door, owner string
	h2          bool
}

// door is one Fairlead. The first runs as long as the soak, which shows what it accumulates. The
// second is replaced again and again.
type door struct {
	*cluster.Front

	name  string
	admin *http.Client // of its admin port
	ready atomic.Bool  // from its readiness check
	away  atomic.Bool  // it is stopped or being replaced
}

type caller struct {
	user   string
	groups []string // sorted
	// header is in each of the caller's requests. Callers with the same line share connections: all
	// with a token, and all behind the front proxy.
	header  http.Header
	line    string
	tls     *tls.Config
	trusted bool // marks a front proxy's caller: forged identity headers would be believed
}

func raise(t *testing.T, dir string, journal *slog.Logger) *world {
	t.Helper()
	w := &world{t: t, journal: journal, checker: newChecker(journal), lines: map[line]*http.Transport{}}
	go w.checker.clock.Run(t.Context())
	fairlead := suite.Build(t, filepath.Join(dir, "bin"))
	// The address that the kube-apiservers advertise may not be loopback.
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServers: 2, APIServerArgs: []string{"--advertise-address=10.79.0.1"}})
	w.fronts = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	for i := range w.APIServers {
		w.kube = append(w.kube, suite.Client(t, w.EndpointOf(i), w.Admin()))
		w.kube[i].Timeout = 5 * time.Second // a stopped kube-apiserver does not answer; the other one may
	}
	for path, manifest := range map[string]string{
		"/api/v1/namespaces/" + namespace: "{apiVersion: v1, kind: Namespace, metadata: {name: soak}}",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/" + namespace: `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: soak}, rules: [
  {apiGroups: [alpha.soak.example.com, beta.soak.example.com, gamma.soak.example.com], resources: ["*"], verbs: ["*"]},
  {apiGroups: [""], resources: [configmaps], verbs: [get, watch]}]}`,
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/" + namespace: `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: soak},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: soak}, subjects: [
  {apiGroup: rbac.authorization.k8s.io, kind: Group, name: soak},
  {apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:serviceaccounts:soak"}]}`,
	} {
		w.create(t.Context(), path, manifest)
	}
	w.create(t.Context(), configMaps+"/"+beacon, "{apiVersion: v1, kind: ConfigMap, metadata: {name: beacon}}")
	for i, name := range []string{"alpha", "beta", "gamma"} {
		w.groups = append(w.groups, w.raiseGroup(t.Context(), i, name))
	}
	for i, name := range []string{"a", "b"} {
		w.doors[i] = w.raiseDoor(t.Context(), fairlead, name)
	}
	w.raiseCallers(t.Context())
	w.await(t.Context(), "everything, at the start", "")
	if v := w.checker.violations(); len(v) > 0 {
		t.Fatalf("waiting for everything: %s", v[0].what)
	}
	return w
}

// apply gives the cluster an object, or deletes it if the manifest is empty, at one kube-apiserver
// after the other until that succeeds. It gives up after 3 minutes, when a control plane that was
// broken on purpose should have recovered.
func (w *world) apply(ctx context.Context, path, manifest string) error {
	var last error
	n, method, gone := 0, http.MethodPatch, http.StatusOK
	if manifest == "" {
		method, gone = http.MethodDelete, http.StatusNotFound // an earlier attempt may have deleted it
	}
	header := http.Header{"Content-Type": {"application/apply-patch+yaml"}}
	ended := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		i := n % len(w.kube)
		n++
		var reply ask.Reply
		reply, last = ask.Do(ctx, w.kube[i], method, w.EndpointOf(i).URL+path+"?fieldManager=soak&force=true", header, manifest)
		if last == nil && reply.Code/100 != 2 && reply.Code != gone {
			last = fmt.Errorf("%s %s: %d: %s", method, path, reply.Code, reply.Body)
		}
		return last == nil, nil
	})
	if ended != nil {
		return fmt.Errorf("asking the cluster: %w (%w)", ended, last)
	}
	return nil
}

func (w *world) create(ctx context.Context, path, manifest string) {
	must.Do(w.t, w.apply(ctx, path, manifest))
}

func (w *world) raiseDoor(ctx context.Context, fairlead, name string) *door {
	front := must.Get(w.StartFairlead(ctx, cluster.Fairlead{Path: fairlead, Name: "fairlead-" + name, Args: []string{
		fmt.Sprint("--http2=", *lane == "h2"),
		"--local-apiserver=" + w.EndpointOf(0).URL + "," + w.EndpointOf(1).URL,
		"--request-timeout=" + requestTimeout.String(), "--shutdown-delay-duration=" + drainDelay.String(), "--shutdown-watch-termination-grace-period=1s",
		"--access-log=" + filepath.Join(w.Dir(), "access-"+name+".jsonl"),
	}}))(w.t)
	d := &door{Front: front, name: name}
	d.admin = &http.Client{Transport: transport(w.clientTLS(w.PKI.Admin), true), Timeout: 3 * time.Second} // a stopped door does not answer
	probe := &http.Client{Transport: transport(w.clientTLS(cluster.Pair{}), false), Timeout: time.Second}
	go wait.UntilWithContext(w.t.Context(), func(ctx context.Context) { d.ready.Store(ask.Serves(ctx, probe, d.Endpoint.URL+"/readyz") == nil) }, drainDelay/20)
	return d
}

func (w *world) raiseCallers(ctx context.Context) {
	add := func(c *caller, groups ...string) {
		c.groups = slices.Sorted(slices.Values(append(groups, "system:authenticated")))
		w.callers = append(w.callers, c)
	}
	for _, user := range []string{"ann", "ben", "cyd", "dee"} {
		groups := []string{namespace, "crew-" + user}
		pair := must.Get(w.PKI.Client.Issue("soak-"+user, cluster.Leaf{User: user, Groups: groups}))(w.t)
		add(&caller{user: user, line: user, tls: w.clientTLS(pair)}, groups...)
	}
	nobody, core := w.clientTLS(cluster.Pair{}), must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(w.t)
	for _, name := range []string{"eve", "fay", "gus", "hal"} {
		path := "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + name
		w.create(ctx, path, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: "+name+"}}")
		token := suite.Token(w.t, core, namespace, name)
		add(&caller{user: "system:serviceaccount:" + namespace + ":" + name, line: "tokens", tls: nobody, header: ask.Bearer(token)},
			"system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	proxy := w.clientTLS(w.PKI.FrontProxyPair)
	for _, user := range []string{"ida", "jon", "kit", "lea"} {
		groups := []string{namespace, "crew-" + user}
		add(&caller{user: user, line: "proxied", tls: proxy, trusted: true, header: http.Header{"X-Remote-User": {user}, "X-Remote-Group": groups}}, groups...)
	}
}

func (w *world) clientTLS(pair cluster.Pair) *tls.Config {
	return suite.TLS(w.t, w.Endpoint(), cluster.Credentials{Pair: pair})
}

// transport returns a client's transport, over HTTP/2 if h2 is set and a door offers it.
func transport(c *tls.Config, h2 bool) *http.Transport {
	return &http.Transport{TLSClientConfig: c.Clone(), Protocols: ask.Only(h2 && *lane == "h2"), DisableCompression: true, MaxIdleConnsPerHost: 8}
}

// transport returns the connections for a task.
func (w *world) transport(t *task) *http.Transport {
	key := line{t.door.name, t.caller.line, t.h2}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines[key] == nil {
		w.lines[key] = transport(t.caller.tls, t.h2)
	}
	return w.lines[key]
}

// choose returns a door that is ready. If none is, it returns one that is not away.
func (w *world) choose(n int) *door {
	ready := slices.DeleteFunc(slices.Clone(w.doors[:]), func(d *door) bool { return !d.ready.Load() })
	if len(ready) == 0 {
		ready = slices.DeleteFunc(slices.Clone(w.doors[:]), func(d *door) bool { return d.away.Load() })
	}
	return ready[n%len(ready)]
}

// load sends requests at a steady rate, whether or not they are answered, and keeps watches open.
// stop ends it, and waits for running requests.
func (w *world) load(ctx context.Context) (stop func()) {
	asking, cancel := context.WithCancel(ctx)
	var owners sync.WaitGroup
	owners.Go(func() { volley.Pace(asking, time.Second/rate, func(int) { w.request(ctx) }) })
	for range watchers {
		owners.Go(func() {
			for asking.Err() == nil {
				w.watch(asking)
			}
		})
	}
	return func() {
		cancel()
		owners.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, t := range w.lines {
			t.CloseIdleConnections()
		}
		clear(w.lines)
	}
}

// dose waits until n more requests for group (empty: for anything) have ended, or for 12 s, a
// little longer than a request may take: when everything hangs, none ends.
func (w *world) dose(ctx context.Context, group string, n int) {
	ctx, cancel := context.WithTimeout(ctx, 12*time.Second)
	defer cancel()
	for most := w.checker.ended(group) + n; w.checker.ended(group) < most && ctx.Err() == nil; {
		pause(ctx, look)
	}
}
