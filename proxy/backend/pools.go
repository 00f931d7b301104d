package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// Config is what Pools need. Table, TLS and Dial must be set.
type Config struct {
	// Table is the registry's current table.
	Table func() *registry.Table
	// TLS makes the configuration of one connection to a backend on behalf of an APIService, or of all that have the Backend if that is empty: the trust and our client
	// certificate. It is changed by the caller.
	TLS func(apiService string, b *registry.Backend) (*tls.Config, error)
	// Guard watches over a connection whose server presented chain: lost is closed when it is no longer trusted, by the APIService, or by b if that is empty. release is called
	// when the connection has ended. Nil: connections drain when the registry.Backend changes.
	Guard func(apiService string, b *registry.Backend, chain []*x509.Certificate) (lost <-chan struct{}, release func())
	// IdentityChanged returns a channel that is closed when the proxy client certificate is replaced; called again, it returns the next one. All connections then
	// drain. Nil: it never is.
	IdentityChanged func() <-chan struct{}
	// Dial connects to an address, or refuses to: whoever may write an EndpointSlice chooses what is dialled, and
	// gets our client certificate.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Signal tells health that live traffic found an endpoint failing: a dial, a handshake, an unanswered ping, a connection that ended. It must not block. Nil: nobody
	// is told.
	Signal func(apiService, address string, err error)
	// Observe tells health how long an endpoint took to send the first byte of its response, from the moment the request went out to it, for every request that is not
	// long-running. It is called on the hot path: it must not block, lock or allocate. Nil: nobody is told.
	Observe func(apiService, address string, took time.Duration)
	// Hold asks for memory for a body that is kept for a retry. A negative n gives back and is always granted. Nil: the
	// bound of this package alone counts.
	Hold func(n int64) bool
	// Logger gets failed dials (debug). Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_backend_*. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Pools carry requests to the extension servers of the table. They work from New on, but follow the table only while Run runs.
type Pools struct {
	cfg     Config
	owner   *owner
	byEntry sync.Map      // *registry.Entry of the applied table → *Upstream
	applied atomic.Uint64 // generation of the last applied table

	// mu guards what follows and orders apply. It is never held over I/O. Requests may wait for it with a shard's mutex of the engine in hand.
	mu       sync.Mutex
	entries  []*registry.Entry  // of the applied table
	remotes  map[string]*remote // by APIService
	carriers map[*registry.Backend]*carrier
	held     map[held]struct{}
	// thinned waits for forsake, left for leave.
	thinned map[*carrier]struct{}
	left    []*Upstream
}

// remote is an APIService's Upstream, which outlives changes of its trust.
type remote struct {
	*Upstream
	spec atomic.Pointer[registry.Backend]
	on   *carrier // by Pools.mu; nil: its backend speaks HTTP/1.1
}

// New makes Pools and registers their metrics.
func New(cfg Config) (*Pools, error) {
	if cfg.Table == nil || cfg.TLS == nil || cfg.Dial == nil {
		return nil, errors.New("making backend pools: Table, TLS and Dial are required")
	}
	p := &Pools{
		cfg: cfg, owner: newOwner(cfg.Logger), remotes: make(map[string]*remote), carriers: make(map[*registry.Backend]*carrier), held: make(map[held]struct{}),
		thinned: make(map[*carrier]struct{}),
	}
	p.owner.grant = cfg.Hold
	return p, metric.Register(cfg.Metrics, "backends", newCollector(p.upstreams, true))
}

// Run follows the table until ctx ends, and then closes every connection.
func (p *Pools) Run(ctx context.Context) error {
	defer p.owner.stop()
	identity := p.identity()
	for {
		t := p.cfg.Table()
		p.apply(t.Generation(), t.Entries())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Superseded():
		case <-identity:
			identity = p.identity()
			for _, u := range p.all() {
				u.drain()
			}
		}
	}
}

func (p *Pools) identity() <-chan struct{} {
	if p.cfg.IdentityChanged == nil {
		return nil
	}
	return p.cfg.IdentityChanged()
}

// Upstream returns what carries the requests of a remote entry. Nil: the APIService is gone.
func (p *Pools) Upstream(e *registry.Entry) *Upstream {
	if u, ok := p.byEntry.Load(e); ok {
		return u.(*Upstream) //nolint:forcetypeassert // nothing else is stored
	}
	// The request has seen a newer table than Run has, or an older one: then what is now known by its name counts.
	if t := p.cfg.Table(); t.Generation() > p.applied.Load() {
		p.apply(t.Generation(), t.Entries())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.remotes[e.Name]; r != nil {
		return r.Upstream
	}
	return nil
}

// apply takes the remote entries of a table, unless a newer one has been taken.
func (p *Pools) apply(generation uint64, entries []*registry.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if generation <= p.applied.Load() {
		return
	}
	changes := latest.Diff(p.entries, entries)
	for _, c := range changes {
		if e := c.New; e != nil && e.Backend != nil {
			r := p.remotes[e.Name]
			if r == nil {
				r = p.newRemote(e.Name)
				p.remotes[e.Name] = r
			}
			p.follow(r, e)
		}
	}
	for _, c := range changes { // last, so that connections of a Backend that somebody else has now stay
		if c.Old == nil || c.New != nil && c.New.Backend != nil || p.remotes[c.Old.Name] == nil {
			continue
		}
		r := p.remotes[c.Old.Name]
		delete(p.remotes, c.Old.Name)
		p.byEntry.Delete(c.Old)
		p.part(r)
		r.close()
	}
	p.entries = entries
	p.forsake()
	p.leave()
	// After the maps: who finds the generation applied must find what is in it.
	p.applied.Store(generation)
}

// follow brings one upstream to the state of its entry.
func (p *Pools) follow(r *remote, e *registry.Entry) {
	old, b, was := r.spec.Load(), e.Backend, r.view.Load()
	if was.entry == e {
		return
	}
	if old != b {
		r.spec.Store(b)
		p.move(r, b) // before anybody sees the new entry: its requests must not go where the old one's went
	}
	if fewer := r.update(&view{
		entry: e, maxInFlight: int64(e.Policy.MaxInFlight), maxLongRunning: int64(e.Policy.MaxLongRunning), pingTimeout: b.PingTimeout,
	}, e.Endpoints); fewer && r.on != nil {
		p.thinned[r.on] = struct{}{}
	}
	p.byEntry.Delete(was.entry)
	p.byEntry.Store(e, r.Upstream)
	// A connection keeps the ping that it was made with: another is for the next ones. Where only the trust differs, that is Guard's
	// matter: a connection that verifies under the new one goes on.
	if old != nil && old != b && (p.cfg.Guard == nil || !old.SameService(b) || old.HTTP1 != b.HTTP1 || old.PingTimeout != b.PingTimeout) {
		r.drain()
	}
}

func (p *Pools) newRemote(name string) *remote {
	r := &remote{}
	old, either := []string{"http/1.1"}, []string{"h2", "http/1.1"} // asked for with every request
	r.Upstream = newUpstream(name, p.owner, target{
		tls:   func() (*tls.Config, error) { return p.cfg.TLS(name, r.spec.Load()) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) { return p.guard(name, r.spec.Load(), chain) },
		dial:  p.cfg.Dial,
		signal: func(address string, err error) {
			if p.cfg.Signal != nil {
				p.cfg.Signal(name, address, err)
			}
		},
		observe: func(address string, took time.Duration) {
			if p.cfg.Observe != nil {
				p.cfg.Observe(name, address, took)
			}
		},
		protocols: func() []string {
			if r.spec.Load().HTTP1 {
				return old
			}
			return either
		},
		// An HTTP/1.1 backend needs a connection per request; the APIService's limits are the bound.
		maxConns: 16 << 10,
		doubt:    suspicionTime,
	})
	return r
}

func (p *Pools) guard(name string, b *registry.Backend, chain []*x509.Certificate) (lost <-chan struct{}, release func()) {
	if p.cfg.Guard == nil {
		return noGuard(chain)
	}
	return p.cfg.Guard(name, b, chain)
}

func (p *Pools) upstreams() []*Upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*Upstream, 0, len(p.remotes))
	for _, r := range p.remotes {
		list = append(list, r.Upstream)
	}
	return list
}
