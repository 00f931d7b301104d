// Package health finds out whether endpoints can be used, and says whether this process is healthy.
//
// A Prober follows the table. One goroutine owns each target: an endpoint of a Backend, from the first table that names
// it until one no longer does. In each interval the target dials the endpoint once. On that connection it asks what
// kube-aggregator would ask for each APIService that claims the endpoint (round.go). A claim has its own verdict
// (claim.go) and reports changes; the registry makes verdicts of the reports. Three things make a target probe ahead of
// its schedule: a hint from live traffic (Signal), the death of the connection that the last round left open, and a
// light check on that connection that got no response. None of them ejects an endpoint: two failed fresh probes do.
//
// A table may name servers that serve no group-version: the local apiservers. Over HTTP/2 they are asked for /readyz.
//
// Checks, Relay and Draining are this process's own health: the admin port's /livez and /readyz, and the main port's.
//
// The concurrency rule: all state of a target and its claims belongs to the target's goroutine, and rounds deliver
// their findings to it. A round's connections belong to the round until it ends. Other goroutines set flags of the
// target (atomics and a one-slot channel) and never wait for it, so Signal and Observe may be called on the hot path.
//
// This package keeps no second set of APIServices (only the running probes), computes no
// APIService's verdict and picks no endpoint for a request.
package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Config is what a Prober needs (makeBackends and kube.connect in cmd/fairlead). Table, Report, TLS, Dial are required.
type Config struct {
	// Table returns the current table: of its entries the endpoints are probed, for the document of
	// their group-version or, where they have none, for the server's readiness.
	Table func() latest.State[*registry.Entry]
	// Report takes what was found out about an endpoint, when that has changed or after a Signal, from many goroutines.
	Report func(registry.Report)
	// TLS returns the client configuration for a Backend, with the proxy client certificate: by what its Owner trusts
	// or, without one, what all that have the Backend trust. If an error (or one of the verification that it sets up)
	// has a method Reason() string, the report has that and the text as its message. The result is not changed.
	TLS func(owner string, b *registry.Backend) (*tls.Config, error)
	// Dial opens a probe's connection, or refuses to, as for live traffic: it has our certificate, and privileges.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Authorization returns this field for each probe. Nil means the identity that kube-aggregator
	// sends, user system:kube-aggregator in group system:masters.
	Authorization func() string
	MaxWatched    int // bounds the connections kept open. More than maxWatched, and zero, mean that
	metric.Sinks      // each change of an endpoint's health
}

// Prober probes every endpoint of the table. Signal and Observe do nothing until Run has seen a table.
type Prober struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	gate    gate
	began   time.Time
	watched atomic.Int64      // connections kept open, at most most
	most    int64             // see Config.MaxWatched
	failing [troubles]weights // of targets, by the way in which they fail
	// index has what is probed, by APIService. It is immutable: apply stores a new one when the set changes.
	index atomic.Pointer[map[string]peers]
}

// maxWatched bounds the connections that are kept open to see a process die at once: 1024 idle TLS
// connections are some 30 MiB and 1024 descriptors, half the endpoints of the largest cluster we
// size for (10,000 APIServices on 2,000). Endpoints beyond it lose only the immediate notice.
const maxWatched = 1024

// New returns a Prober. It does nothing until Run.
func New(c Config) *Prober {
	p := &Prober{
		config: c, log: c.Log(), metrics: newMetrics(c.Metrics),
		gate: make(gate, gateSlots), began: time.Now(), most: int64(min(cmp.Or(c.MaxWatched, maxWatched), maxWatched)),
	}
	p.index.Store(&map[string]peers{})
	return p
}

// beat returns the first beat at or after a time.
func (p *Prober) beat(at time.Time) time.Time {
	return at.Add((beat - at.Sub(p.began)%beat) % beat)
}

// Run follows the table until ctx ends. Then none of its goroutines and connections are left.
func (p *Prober) Run(ctx context.Context) error {
	s := &set{prober: p, targets: map[key]*target{}, claims: map[string]peers{}, changed: map[*target]struct{}{}}
	defer s.owners.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.owners.Go(func() { p.judgeLatencies(ctx) })
	for t := range latest.Of(ctx, p.config.Table, nil) {
		s.apply(ctx, t.Servers())
	}
	s.apply(ctx, nil) // forget their metrics
	return ctx.Err()
}

// Signal is the hint that live traffic could not reach an endpoint: a failed dial, handshake or ping. The endpoint is
// probed at once, or as soon as the bound on such probes allows. It never blocks nor ejects. A nil err is ignored.
func (p *Prober) Signal(apiService, address string, err error) {
	if c := (*p.index.Load())[apiService][address]; c != nil && err != nil {
		c.target.set(&c.target.hinted)
	}
}

// Renew has an APIService's endpoints probed at once, even during the pause after failures: its trust has changed
// without another Backend in the table (a referenced bundle), or the first of several servers is back. It never blocks.
func (p *Prober) Renew(apiService string) {
	for _, c := range (*p.index.Load())[apiService] {
		c.target.set(&c.target.renewed)
	}
}

// Last returns when the last probe of an endpoint for an APIService ended, how long it took, and
// why it failed. An empty fault means that it passed, a zero time that no probe has ended.
func (p *Prober) Last(apiService, address string) (ended time.Time, took time.Duration, fault string) {
	if c := (*p.index.Load())[apiService][address]; c != nil {
		l := ptr.Deref(c.last.Load(), probe{})
		return l.ended, l.took, l.fault
	}
	return time.Time{}, 0, ""
}

// Serves describes the resources that a URL serves of an APIService's group-version: how many, and a hash of the names.
// It is empty if that is unknown or not a minute old, and for those of a Service: replicas may differ in a rollout.
func (p *Prober) Serves(apiService, address string) string {
	if c := (*p.index.Load())[apiService][address]; c != nil {
		if s := c.serves.Load(); s != nil && time.Since(s.since) >= settled {
			return s.text
		}
	}
	return ""
}

const settled = time.Minute // how long a URL must serve the same until that is compared with the others

type served struct {
	text  string
	since time.Time
}

// Observe takes how long an endpoint took to send the first byte of its response to a request that
// is not long-running. It never blocks nor allocates. The mean is geometric: one user's slow requests count little.
func (p *Prober) Observe(apiService, address string, d time.Duration) {
	if c := (*p.index.Load())[apiService][address]; c != nil {
		c.latency.sum.Add(int64(logUnit * math.Log2(float64(max(d, 2)))))
		c.latency.count.Add(1)
	}
}

// set holds what is probed. Only Run's goroutine touches it.
type set struct {
	prober  *Prober
	owners  sync.WaitGroup // the goroutines of targets, and judgeLatencies
	targets map[key]*target
	entries []*registry.Entry    // as last applied
	claims  map[string]peers     // :: APIService
	changed map[*target]struct{} // those with changed members
}

// peers are the claims of one APIService, by address. They never change.
type peers map[string]*claim

func (s *set) apply(ctx context.Context, entries []*registry.Entry) {
	for _, c := range latest.Diff(s.entries, entries) {
		switch {
		case c.New != nil && probed(c.New):
			s.enter(c.New)
		case c.Old != nil && probed(c.Old):
			s.leave(c.Old.Name)
		}
	}
	s.entries = entries
	if len(s.changed) > 0 {
		s.start(ctx)
		s.prober.index.Store(new(maps.Clone(s.claims)))
	}
}

// probed reports whether an entry's endpoints are probed. Nothing is ever sent to those of a protected group.
func probed(e *registry.Entry) bool {
	return !e.Local() && e.Verdict.Reason != registry.ReasonProtectedGroup
}

func (s *set) enter(e *registry.Entry) {
	was, now := s.claims[e.Name], make(peers, len(e.Endpoints))
	of := func(ep *registry.Endpoint) key {
		return key{e.Backend, ep.Address, cmp.Or(e.Settings.ProbeInterval, defaultInterval), e.GroupVersion.Empty()}
	}
	for i := range e.Endpoints {
		ep := &e.Endpoints[i]
		if c := was[ep.Address]; c != nil && c.target.key == of(ep) {
			c.follow(ep)
			now[ep.Address] = c
		}
	}
	// Drop before add: a claim that replaces another of its name and address takes over its series.
	for address, c := range was {
		if now[address] == nil {
			s.drop(c)
		}
	}
	for i := range e.Endpoints {
		if ep := &e.Endpoints[i]; now[ep.Address] == nil {
			now[ep.Address] = s.add(of(ep), e)
		}
	}
	s.claims[e.Name] = now
}

func (s *set) leave(name string) {
	for _, c := range s.claims[name] {
		s.drop(c)
	}
	delete(s.claims, name)
	s.prober.metrics.probes.DeleteLabelValues(name, "passed") // DeletePartialMatch looks at the series of all
	s.prober.metrics.probes.DeleteLabelValues(name, "failed")
}

func (s *set) add(k key, e *registry.Entry) *claim {
	t := s.targets[k]
	if t == nil {
		t = newTarget(s.prober, k)
		s.targets[k] = t
	}
	c := newClaim(t, e)
	t.members[c] = struct{}{}
	s.changed[t] = struct{}{}
	return c
}

func (s *set) drop(c *claim) {
	c.gone.Store(true)
	s.prober.metrics.healthy.DeleteLabelValues(c.name, c.target.key.address)
	delete(c.target.members, c)
	s.changed[c.target] = struct{}{}
}

// start hands the changed targets their claims, and ends the targets that have none.
func (s *set) start(ctx context.Context) {
	for t := range s.changed {
		if len(t.members) == 0 {
			t.cancel()
			delete(s.targets, t.key)
			continue
		}
		t.claims.Store(new(slices.Collect(maps.Keys(t.members))))
		if t.cancel != nil {
			t.poke()
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		t.cancel = cancel
		s.owners.Go(func() {
			defer cancel()
			t.run(ctx)
		})
	}
	clear(s.changed)
}

// metrics are the prober's. Series come and go with the table's objects, whose names are labels.
type metrics struct {
	duration prometheus.Histogram
	probes   *prometheus.CounterVec // :: name, result
	healthy  *prometheus.GaugeVec   // :: name, address
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_probe_duration_seconds",
			Help: "Duration of probes of backend endpoints, dial and handshake included.",
			// From a handshake on loopback to the timeout.
			Buckets: []float64{0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5},
		}),
		probes: metric.CountBy("fairlead_probe_total",
			"Probes of backend endpoints, by APIService and result (passed, failed).", "name", "result"),
		healthy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fairlead_endpoint_healthy",
			Help: "1 if the endpoint is healthy, 0 if it is not or has not been found out yet.",
		}, []string{"name", "address"}),
	}
	metric.Register(r, m.duration, m.probes, m.healthy)
	return m
}
