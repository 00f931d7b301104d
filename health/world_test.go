package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestMain(m *testing.M) { must.Main(m) }

const serverName, at = "metrics.kube-system.svc", "10.0.0.1:443"

// world is a Prober with its table, and the servers that it probes.
type world struct {
	*Prober
	t       *testing.T
	tale    *story.Story
	line    string // of the story
	turn    int    // of what is repeated
	each    string // see TestStories
	metrics *prometheus.Registry
	hosts   map[string]*host // :: address
	all     []*registry.Entry
	pair    tls.Certificate
	roots   map[string]*x509.CertPool // :: what the Prober trusts
	before  int                       // dials before the last mark

	mu         sync.Mutex // guards the fields below, which the Prober and the servers use, too
	entries    []*registry.Entry
	superseded chan struct{}
	reports    int
	newest     map[[2]string]note // :: APIService, address
	everSlow   map[[2]string]bool
	trusts     string
	handshake  time.Duration // how long the trust takes
	answers    []answer      // the first that is for a request
	requests   map[string]int
	asked      int64 // in all
	request    *http.Request
	working    int // requests that take time
	most       int // at the same time
}

// note is a report, and its time.
type note struct {
	registry.Report
	at time.Time
}

func newWorld(t *testing.T, options ...string) *world {
	t.Helper()
	w := &world{
		t: t, metrics: prometheus.NewPedanticRegistry(), hosts: map[string]*host{}, superseded: make(chan struct{}),
		newest: map[[2]string]note{}, everSlow: map[[2]string]bool{}, trusts: "good", requests: map[string]int{},
	}
	o := map[string]string{"claims": "1", "at": "1"}
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		o[key] = value
	}
	o["served"] = cmp.Or(o["served"], o["at"])
	is := func(option string) bool { _, ok := o[option]; return ok }
	number := func(option string) int { return int(w.value(cmp.Or(o[option], "0"))) }
	ca, leaf := pki.NewCA("ours"), pki.Leaf{Names: []string{cmp.Or(o["name"], serverName)}}
	if is("expired") {
		leaf.NotBefore, leaf.NotAfter = time.Unix(0, 0), time.Unix(1, 0)
	}
	w.pair, w.roots = ca.Issue(leaf).TLS(), map[string]*x509.CertPool{"good": ca.Pool(), "other": pki.NewCA("other").Pool()}
	shared := &registry.Backend{ServerName: serverName, HTTP1: is("http1"), Owner: o["owner"]}
	for i := range max(number("claims"), number("copies")) {
		gv := schema.GroupVersion{Group: fmt.Sprint("g", i), Version: "v1"}
		e := &registry.Entry{Name: "v1." + gv.Group, Backend: shared, GroupVersion: gv}
		switch {
		case is("copies"):
			e.Backend = &registry.Backend{ServerName: serverName}
		case is("servers"):
			e.Name, e.GroupVersion = "local-apiserver", schema.GroupVersion{}
		case is("local"):
			e.Backend = nil
		case is("protected"):
			e.Verdict.Reason = registry.ReasonProtectedGroup
		}
		for j := range number("at") {
			e.Endpoints = append(e.Endpoints, registry.Endpoint{Address: fmt.Sprintf("10.0.0.%d:443", j+1)})
		}
		w.all = append(w.all, e)
	}
	for _, endpoint := range w.all[0].Endpoints[:number("served")] {
		w.serve(w.host(endpoint.Address), o["alpn"], number("streams"), time.Duration(number("idle")))
	}
	w.entries = w.all
	c := Config{
		Table: w.table, Report: w.report, TLS: w.trust,
		Dial: func(ctx context.Context, _, address string) (net.Conn, error) { return w.host(address).dial(ctx) },
	}
	c.Metrics, c.MaxWatched = w.metrics, number("watched")
	w.Prober = New(c)
	return w
}

// run starts the Prober. It ends before the servers do, and with nothing left.
func (w *world) run() {
	w.t.Cleanup(func() { check.Same(w.t, 0, w.watched.Load(), "watched connections left") })
	must.Run(w.t, w.Run)
	pass(time.Millisecond)
}

// end checks that no connection, claim or counter remains with an empty table.
func (w *world) end() {
	w.set()
	synctest.Wait()
	for address, h := range w.hosts {
		check.Same(w.t, 0, h.open(), "connections left to %s", address)
	}
	check.Same(w.t, 0, w.watched.Load(), "connections counted as watched")
	for name, claims := range *w.index.Load() {
		check.Same(w.t, 0, len(claims), "endpoints left of %s", name)
	}
	for how := range w.failing {
		check.Same(w.t, 0, len(w.failing[how].by), "failing in way %d", how)
	}
}

// pass lets time pass, and then waits for everything that is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) set(entries ...*registry.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = entries
	close(w.superseded)
	w.superseded = make(chan struct{})
}

func (w *world) report(r registry.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports++
	key := [2]string{r.Name, r.Address}
	w.newest[key] = note{r, time.Now()}
	w.everSlow[key] = w.everSlow[key] || r.Slow
	if r.Health == registry.Healthy {
		check.Same(w.t, !r.Backend.HTTP1, r.HTTP2, "%s at %s answers over HTTP/2", r.Name, r.Address)
	}
}

// of returns the newest report about an entry at `at`.
func (w *world) of(e *registry.Entry) note {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest[[2]string{e.Name, at}]
}

func (w *world) host(address string) *host {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hosts[address] == nil {
		w.hosts[address] = newHost(address)
	}
	return w.hosts[address]
}

// pathOf returns the path that is requested for an entry.
func pathOf(e *registry.Entry) string { return probeURL(e, at).Path }
