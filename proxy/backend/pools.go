package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Config is what Pools need. Table, TLS and Dial must be set.
type Config struct {
	// Table is the registry's current table.
	Table func() *registry.Table
	// TLS makes the configuration of one connection to a backend: its trust and our client certificate. It is changed by the caller.
	TLS func(*registry.Backend) (*tls.Config, error)
	// Guard watches over a connection whose server presented chain: lost is closed when it is no longer trusted. release is called when the connection has ended. Nil:
	// connections drain when the registry.Backend changes.
	Guard func(b *registry.Backend, chain []*x509.Certificate) (lost <-chan struct{}, release func())
	// Share returns the trust in a backend as one that never changes and that other APIServices may have, too: those of one Service and port with equal (comparable)
	// keys share HTTP/2 connections, which are made with tls and watched over by guard as by TLS and Guard. A nil key: there is no such trust now. Nil: nothing is shared.
	Share func(*registry.Backend) (key any, tls func() *tls.Config, guard func(chain []*x509.Certificate) (lost <-chan struct{}, release func()))
	// IdentityChanged returns a channel that is closed when the proxy client certificate is replaced; called again, it returns the next one. All connections then
	// drain. Nil: it never is.
	IdentityChanged func() <-chan struct{}
	// Dial connects to an address, or refuses to: whoever may write an EndpointSlice chooses what is dialled, and
	// gets our client certificate.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Signal tells health that live traffic found an endpoint failing: a dial, a handshake, an unanswered ping, a connection that ended. It must not block. Nil: nobody
	// is told.
	Signal func(b *registry.Backend, address string, err error)
	// Observe tells health how long an endpoint took to send the first byte of its response, from the moment the request went out to it, for every request that is not
	// long-running. It is called on the hot path: it must not block, lock or allocate. Nil: nobody is told.
	Observe func(b *registry.Backend, address string, took time.Duration)
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
	cfg   Config
	owner *owner
	// bySpec finds the Upstream of an entry: *registry.Backend → *Upstream.
	bySpec  sync.Map
	applied atomic.Uint64 // generation of the last applied table

	// mu guards what follows and orders apply. It is never held over I/O. Requests may wait for it with a shard's mutex of the frame lane in hand.
	mu      sync.Mutex
	remotes map[string]*remote // by APIService
	groups  map[groupKey]*group
	held    map[held]struct{}
	// thinned waits for forsake, left for leave.
	thinned map[*group]struct{}
	left    []*Upstream
}

// remote is an APIService's Upstream, which outlives changes of its trust.
type remote struct {
	*Upstream
	spec atomic.Pointer[registry.Backend]
	// group is who may use each other's connections; by Pools.mu. Nil: nobody's but its own.
	group *group
}

// New makes Pools and registers their metrics.
func New(cfg Config) (*Pools, error) {
	if cfg.Table == nil || cfg.TLS == nil || cfg.Dial == nil {
		return nil, errors.New("making backend pools: Table, TLS and Dial are required")
	}
	p := &Pools{
		cfg: cfg, owner: newOwner(cfg.Logger), remotes: make(map[string]*remote), groups: make(map[groupKey]*group), held: make(map[held]struct{}),
		thinned: make(map[*group]struct{}),
	}
	p.owner.grant = cfg.Hold
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(newCollector(p.upstreams, true)); err != nil {
			return nil, fmt.Errorf("registering backend metrics: %w", err)
		}
	}
	return p, nil
}

// Run follows the table until ctx ends, and then closes every connection.
func (p *Pools) Run(ctx context.Context) error {
	defer p.owner.stop()
	join := time.NewTicker(time.Second) // it may wait, and the end of an overlap is no new table
	defer join.Stop()
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
		case <-join.C:
			p.regroup()
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
	if u, ok := p.bySpec.Load(e.Backend); ok {
		u := u.(*Upstream) //nolint:forcetypeassert // nothing else is stored
		if u.view.Load().entry == e {
			return u
		}
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
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		if e.Backend == nil {
			continue
		}
		seen[e.Name] = true
		r := p.remotes[e.Name]
		if r == nil {
			r = p.newRemote(e)
			p.remotes[e.Name] = r
		}
		p.follow(r, e)
	}
	for name, r := range p.remotes {
		if !seen[name] {
			delete(p.remotes, name)
			p.bySpec.Delete(r.spec.Load())
			p.part(r)
			r.close()
		}
	}
	p.forsake()
	p.leave()
	// After the maps: who finds the generation applied must find what is in it.
	p.applied.Store(generation)
}

// follow brings one upstream to the state of its entry.
func (p *Pools) follow(r *remote, e *registry.Entry) {
	old, was := r.spec.Load(), r.view.Load()
	if old == e.Backend && was.entry == e {
		return
	}
	r.spec.Store(e.Backend)
	repinged := was.entry != nil && was.pingTimeout != e.Policy.PingTimeout
	if old != e.Backend || repinged {
		p.part(r) // before anybody sees the new entry: its requests must not go where the old one's went
	}
	if old != e.Backend {
		p.bySpec.Delete(old)
		p.bySpec.Store(e.Backend, r.Upstream)
	}
	fewer := r.update(&view{
		entry: e, maxInFlight: int64(e.Policy.MaxInFlight), maxLongRunning: int64(e.Policy.MaxLongRunning), pingTimeout: e.Policy.PingTimeout,
	}, e.Endpoints)
	if fewer && r.group != nil {
		p.thinned[r.group] = struct{}{}
	}
	// A connection keeps the ping that it was made with: a policy that changes is for the next ones. Where only the trust differs, that is
	// Guard's matter: a connection that verifies under the new one goes on.
	if b := e.Backend; repinged || old != b && (p.cfg.Guard == nil || !old.SameService(b) || old.HTTP1 != b.HTTP1) {
		r.drain()
	}
}

func (p *Pools) newRemote(e *registry.Entry) *remote {
	r := &remote{}
	r.spec.Store(e.Backend)
	old, either := []string{"http/1.1"}, []string{"h2", "http/1.1"} // asked for with every request
	r.Upstream = newUpstream(e.Name, p.owner, target{
		tls: func() (*tls.Config, error) { return p.cfg.TLS(r.spec.Load()) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) {
			if p.cfg.Guard == nil {
				return noGuard(chain)
			}
			return p.cfg.Guard(r.spec.Load(), chain)
		},
		dial: p.cfg.Dial,
		signal: func(address string, err error) {
			if p.cfg.Signal != nil {
				p.cfg.Signal(r.spec.Load(), address, err)
			}
		},
		observe: func(address string, took time.Duration) {
			if p.cfg.Observe != nil {
				p.cfg.Observe(r.spec.Load(), address, took)
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
	p.bySpec.Store(e.Backend, r.Upstream)
	return r
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
