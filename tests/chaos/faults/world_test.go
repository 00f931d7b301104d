//go:build e2e

package faults

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiservices "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/clock"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

const (
	longest     = 30 * time.Second // the limit of anything that a test waits for
	steadyPause = 2 * time.Second  // lets earlier effects settle
)

// world is what all cases share: a cluster of two kube-apiservers, and the CAs that are rotated.
type world struct {
	*cluster.Cluster
	fairlead  string // executable
	clock     clock.Clock
	core      kubernetes.Interface
	services  apiservices.APIServiceInterface
	servingCA *pki.CA // of Fairleads
	clients   *bundle // who Fairleads trust
	proxies   *bundle
	// fronts sign the front proxies that kube-apiserver and the extension servers trust: both, so that Fairlead's pair
	// can move from one to the other.
	fronts  [2]*pki.CA
	trusted *x509.CertPool // both
	numbers atomic.Int32   // makes names and addresses unique
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.78.0.0/16") // each extension server has its own address there
	dir := suite.Folder(t, "faults")
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin")), servingCA: pki.NewCA("serving-ca")}
	must.Run(t, func(ctx context.Context) error { w.clock.Run(ctx); return ctx.Err() })
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServers: 2, APIServerArgs: []string{"--advertise-address=10.78.0.1"}})
	rc := w.Endpoint().RESTConfig(w.Admin())
	w.core, w.services = must.Get(kubernetes.NewForConfig(rc))(t), must.Get(apiservices.NewForConfig(rc))(t).APIServices()
	w.fronts = [2]*pki.CA{w.PKI.FrontProxy.CA, pki.NewCA("front-proxy-ca-2")}
	suite.Put(t, w.PKI.FrontProxy.CertFile, pki.Bundle(w.fronts[:]...))
	w.trusted = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	w.clients, w.proxies = newBundle(t, w.in("rotated-client-ca.crt"), "client-ca"), newBundle(t, w.in("rotated-requestheader-ca.crt"), "requestheader-ca")
	suite.Put(t, w.in("rotated-serving-ca.crt"), w.servingCA.PEM())
	return w
}

func (w *world) in(name string) string { return filepath.Join(w.Dir(), name) }

func (w *world) name(kind string) string { return fmt.Sprint(kind, w.numbers.Add(1)) }

// bundle is a file of CAs. first is rotated away; lasting stays.
type bundle struct {
	file           string
	first, lasting *pki.CA
}

func newBundle(t *testing.T, file, name string) *bundle {
	t.Helper()
	b := &bundle{file: file, first: pki.NewCA(name), lasting: pki.NewCA("lasting-" + name)}
	b.write(t, b.first, b.lasting)
	return b
}

func (b *bundle) write(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	suite.Put(t, b.file, pki.Bundle(cas...))
}

// remote is an APIService with its Service and extension servers, one at each address.
type remote struct {
	w         *world
	group     string // v1 is the only version that it serves
	host      string // in its certificates
	widgets   string // the path of its objects
	addresses []string
	servers   []*extension.Server
	ca        *pki.CA // of the first certificates
}

const port = 8443 // the port of every extension server. Each has its own address.

// at is where the server with an address listens.
func at(address string) string { return fmt.Sprintf("%s:%d", address, port) }

// remote starts one with n servers, registers it until the test ends, and waits until d serves it.
func (d *door) remote(t *testing.T, n int, annotations map[string]string) *remote {
	t.Helper()
	w := d.w
	name := w.name("remote")
	r := &remote{w: w, group: name + ".faults.example.com", host: name + ".faults.svc", ca: pki.NewCA("old-ca")}
	r.widgets = "/apis/" + r.group + "/v1/namespaces/default/widgets"
	for range n {
		number := w.numbers.Add(1)
		address := fmt.Sprintf("10.78.%d.%d", 1+number/250, 1+number%250)
		r.addresses = append(r.addresses, address)
		r.servers = append(r.servers, extension.Start(t, extension.Config{
			Address: at(address), GroupVersions: []string{r.group + "/v1"}, Names: []string{r.host}, CA: r.ca,
			RequestHeaderCA: w.trusted, AllowedNames: []string{"front-proxy-client"}, RejectWith: 401,
		}))
	}
	bundle := w.in(name + "-ca.crt")
	suite.Put(t, bundle, r.ca.PEM())
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "faults", Service: name, Port: port, Addresses: r.addresses, CAFile: bundle, GroupVersions: []string{r.group + "/v1"}, Annotations: annotations,
	}))
	t.Cleanup(func() {
		_ = w.services.Delete(context.WithoutCancel(t.Context()), "v1."+r.group, metav1.DeleteOptions{})
	})
	r.await(t, d)
	return r
}

// serve makes all servers present a certificate of ca on new connections.
func (r *remote) serve(ca *pki.CA) {
	for _, s := range r.servers {
		s.SetPair(ca.Issue(pki.Leaf{CommonName: "extension", Names: []string{r.host}}))
	}
}

func (r *remote) unavailable(d *door) bool {
	return d.scrape()[fmt.Sprintf("aggregator_unavailable_apiservice{name=%q}", "v1."+r.group)] != 0
}

// healthy returns the metric of one endpoint's health.
func (r *remote) healthy(d *door, address string) bool {
	return d.scrape()[fmt.Sprintf("fairlead_endpoint_healthy{address=%q,name=%q}", at(address), "v1."+r.group)] == 1
}

// await waits until d serves it and all its endpoints are healthy.
func (r *remote) await(t *testing.T, d *door) {
	t.Helper()
	eventually(t, r.group+" is available", func() bool {
		return !r.unavailable(d) && !slices.ContainsFunc(r.addresses, func(a string) bool { return !r.healthy(d, a) })
	})
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
	check.Same(t, true, still <= gross/2, "the machine stood still for %s of %s: the result proves nothing", still, gross)
	check.Same(t, true, gross-still <= bound, "%s after %s, want %s", what, gross-still, bound)
}
