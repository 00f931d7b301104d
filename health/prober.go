package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// Config is what a Prober needs. Table, Report, TLS and Dial must be set.
type Config struct {
	// Table returns the current table.
	Table func() Table
	// Report takes what was found out about an endpoint. It is called only when something changed and, for a server, after a Signal; by many goroutines.
	Report func(registry.Report)
	// TLS returns how a Backend is trusted on behalf of its Owner or, where it has none, of all that have it, the proxy client certificate included. An error (or an error of the verification it sets
	// up) that has a method Reason() string gives the report its reason and its whole message. The result is cloned, never changed.
	TLS func(owner string, b *registry.Backend) (*tls.Config, error)
	// Dial opens the connections of probes, or refuses to, as for live traffic: a probe carries our client
	// certificate and asks as system:masters.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Header is sent with every probe. Nil: the identity that kube-aggregator sends, user system:kube-aggregator in group system:masters.
	Header http.Header
	// MaxWatched bounds the connections that are kept open to see a process die at once. Zero: 1024 (some 30 KiB each). Negative: none.
	MaxWatched int
	// Logger gets one line for each change of an endpoint's health. Nil discards.
	Logger *slog.Logger
	// Metrics takes the prober's metrics. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Prober probes every endpoint of the table. Signal and Observe may be called before Run; they do nothing until it has seen a table.
type Prober struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	gate    gate
	began   time.Time
	watched atomic.Int64 // connections kept open, at most config.MaxWatched
	// failing is how much there is to ask of targets that fail, by how, in twentieths (oneMore) of what one with one claim is asked.
	failing [troubles]atomic.Int64
	index   atomic.Pointer[index]
	indexed chan struct{} // one slot: there is another index
}

// Table says what is probed. It is a *registry.Table, or what never changes: servers that are configured.
type Table interface {
	// Entries are those whose endpoints are asked: for the document of their group-version or, where they have none, whether the server is ready.
	Entries() []*registry.Entry
	// Superseded is closed once a newer table is in place. Nil: never.
	Superseded() <-chan struct{}
}

// index is how what is probed is found. It is immutable: apply stores a new one when the set changes.
type index struct {
	claims   map[string]peers // :: APIService
	compared [][]*claim       // the endpoints of each APIService that has several
}

// maxWatched is the default of Config.MaxWatched: 1024 idle TLS connections are some 30 MiB and 1024 descriptors, half the endpoints of the
// largest cluster we size for (10,000 APIServices on 2,000). Those above it lose only the immediate notice of a death.
const maxWatched = 1024

// New makes a Prober. It does nothing until Run.
func New(c Config) (*Prober, error) {
	if c.Table == nil || c.Report == nil || c.TLS == nil || c.Dial == nil {
		return nil, errors.New("configuring prober: Table, Report, TLS and Dial must be set")
	}
	if c.Header == nil {
		c.Header = http.Header{"X-Remote-User": {"system:kube-aggregator"}, "X-Remote-Group": {"system:masters"}}
	}
	c.MaxWatched = cmp.Or(c.MaxWatched, maxWatched)
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	p := &Prober{config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), metrics: m, began: time.Now(), gate: make(gate, gateSlots), indexed: make(chan struct{}, 1)}
	p.index.Store(&index{})
	return p, nil
}

// beat is the first beat that is not before.
func (p *Prober) beat(at time.Time) time.Time {
	return at.Add((beat - at.Sub(p.began)%beat) % beat)
}

// Run follows the table until ctx ends. When it returns no goroutine and no connection of it is left.
func (p *Prober) Run(ctx context.Context) error {
	var owners sync.WaitGroup
	defer owners.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &set{
		prober: p, owners: &owners, targets: map[key]*target{}, claims: map[string]peers{}, changed: map[*target]struct{}{},
	}
	owners.Go(func() { p.judgeLatencies(ctx) })
	for t := range latest.Of(ctx, p.config.Table, nil) {
		s.apply(ctx, t.Entries())
	}
	s.apply(ctx, nil) // forget their metrics
	return ctx.Err()
}

// Signal says that live traffic could not reach an endpoint: a failed dial, handshake or ping. The endpoint is probed at once, or as soon as
// the bound on such probes allows. It never waits and alone never ejects. A nil err is ignored.
func (p *Prober) Signal(apiService, address string, err error) {
	if c := p.index.Load().claims[apiService][address]; c != nil && err != nil {
		c.target.note(&c.target.hinted)
	}
}

// Renew says that what an APIService trusts has changed without another Backend in the table: a referenced bundle. Its endpoints are probed at once, however long the
// pause that failures have led to. It never waits.
func (p *Prober) Renew(apiService string) {
	for _, c := range p.index.Load().claims[apiService] {
		c.target.note(&c.target.renewed)
	}
}

// Observe says how long an endpoint took to send the first byte of its response to a request that is not long-running. It never waits and
// does not allocate.
func (p *Prober) Observe(apiService, address string, d time.Duration) {
	if c := p.index.Load().claims[apiService][address]; c != nil {
		c.latency.observe(d)
	}
}
