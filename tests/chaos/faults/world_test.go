//go:build e2e

package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	apiservices "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/clock"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	// namespace holds the Services of all backends.
	namespace = "faults"
	// longest is the limit of anything that a test waits for.
	longest = 30 * time.Second
	// steadyPause lets earlier effects settle.
	steadyPause = 2 * time.Second
)

// world is what all cases share: a cluster of two kube-apiservers, and credentials for it.
type world struct {
	*cluster.Cluster
	fairlead string // executable
	clock    clock.Clock
	services apiservices.APIServiceInterface
	ca       *pki.CA // signs the serving certificates of extension servers
	caCert   string  // its files
	caKey    string
	admin    *tls.Config    // of a client in system:masters
	fronts   *x509.CertPool // verifies front proxies
	numbers  atomic.Int32   // makes names and addresses unique
	hosts    atomic.Int32   // how many exist; they are never removed
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Hide(t, "/run/netns") // where ip netns keeps the names of the hosts' namespaces
	netns.Up(t, "10.78.0.0/16") // this namespace is a node, and each endpoint in this process has its own address there
	dir := suite.Folder(t, "faults")
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin")), ca: pki.NewCA("extension-ca")}
	must.Run(t, func(ctx context.Context) error { w.clock.Run(ctx); return ctx.Err() })
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServers: 2, APIServerArgs: []string{"--advertise-address=10.78.0.1"}})
	w.services = must.Get(apiservices.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t).APIServices()
	w.caCert, w.caKey = must.Get2(w.ca.WriteFiles(dir, "extension-ca"))(t)
	w.fronts = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	w.admin = suite.TLS(t, w.Endpoint(), w.Admin())
	return w
}

// clients returns n clients with one connection each, as a member of system:masters.
func (w *world) clients(n int, h2 bool) []*http.Client {
	var list []*http.Client
	for range n {
		transport := &http.Transport{TLSClientConfig: w.admin.Clone(), DisableCompression: true, Protocols: ask.Only(h2)}
		list = append(list, &http.Client{Transport: transport})
	}
	return list
}

// name returns a new name.
func (w *world) name(kind string) string { return fmt.Sprint(kind, w.numbers.Add(1)) }

// repeat calls a function at an interval until the test ends.
func repeat(t *testing.T, every time.Duration, do func(context.Context)) {
	t.Helper()
	must.Run(t, func(ctx context.Context) error { wait.NonSlidingUntilWithContext(ctx, do, every); return ctx.Err() })
}

// eventually polls until ok returns true. Its limit is far beyond what callers assert.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	suite.Eventually(t, longest, what, func() (bool, string) { return ok(), "" })
}

// stopwatch measures time without standstills of the machine: a shared one may stop for seconds,
// with the test and Fairlead, and no verdict is possible then.
type stopwatch struct {
	clock *clock.Clock
	begun time.Time
}

func (w *world) start() stopwatch { return stopwatch{&w.clock, time.Now()} }

// within polls until ok returns true. It fails if more than bound has passed since the start, or if
// most of that was a standstill: the rest proves nothing.
func (s stopwatch) within(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	eventually(t, what, ok)
	at := time.Now()
	gross, still := at.Sub(s.begun), s.clock.Stood(s.begun, at)
	t.Logf("%s after %s by the clock, minus %s of standstill", what, gross.Round(time.Millisecond), still.Round(time.Millisecond))
	if still > gross/2 {
		t.Errorf("the machine stood still for %s of %s: the result proves nothing", still, gross)
	}
	if gross-still > bound {
		t.Errorf("%s after %s, want %s", what, gross-still, bound)
	}
}

// door is one Fairlead under test.
type door struct {
	*cluster.Front
	w     *world
	admin *http.Client // of its admin port
	now   atomic.Pointer[map[string]float64]
}

// newDoor starts a Fairlead in front of both kube-apiservers. It ends with the test.
func (w *world) newDoor(t *testing.T, args ...string) *door {
	t.Helper()
	args = append([]string{"--local-apiserver=" + w.EndpointOf(0).URL + "," + w.EndpointOf(1).URL}, args...)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: w.name("fairlead"), Args: args}))(t)
	t.Cleanup(front.Part.Kill)
	d := &door{Front: front, w: w, admin: w.clients(1, true)[0]}
	d.now.Store(new(map[string]float64))
	repeat(t, 50*time.Millisecond, func(ctx context.Context) {
		if s, err := ask.Metrics(ctx, d.admin, d.Admin.URL); err == nil {
			d.now.Store(&s)
		}
	})
	return d
}

// scrape returns the latest metrics. There is one reader for all cases, because a scrape costs
// Fairlead some milliseconds.
func (d *door) scrape() map[string]float64 { return *d.now.Load() }
