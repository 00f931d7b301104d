package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Config configures Pools (makeBackends in cmd/fairlead). Required are all but Logger and Metrics.
type Config struct {
	Tables latest.Tables[*registry.Table] // has the current table
	// TLS makes the configuration of one connection to a backend: the trust and our client certificate. apiService is
	// the APIService for which it is dialed, or empty for all that have the Backend. The caller may change the result.
	TLS func(apiService string, b *registry.Backend) (*tls.Config, error)
	// Guard watches a connection whose server presented chain. lost is closed when the chain is no longer trusted by
	// the APIService, or by b if apiService is empty; a value says that it has only expired: what goes on there may,
	// new requests need another connection. release is called when the connection has ended.
	Guard func(apiService string, b *registry.Backend, chain []*x509.Certificate) (lost <-chan struct{}, release func())
	// IdentityChanged is certs.Pair.Changed of the proxy client certificate. When that changes, all connections drain.
	IdentityChanged func() <-chan struct{}
	// Dial connects to an address, or refuses to: who writes an EndpointSlice chooses to whom our certificate is shown.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Signal is health.Prober.Signal, of a dial, a handshake, an unanswered ping, a lost connection. It must not block.
	Signal func(apiService, address string, err error)
	// Observe is health.Prober.Observe, for all requests but long-running ones: it must not block, lock or allocate.
	Observe      func(apiService, address string, took time.Duration)
	Memory       *hold.Bound // bounds what the heads of answers take, with everything else. Nil means its own
	metric.Sinks             // failed dials (debug), and fairlead_backend_*
}

// Pools carry requests to the table's extension servers. They work from New on, and follow the table while Run runs.
type Pools struct {
	*shared
	cfg     Config
	byEntry sync.Map      // *registry.Entry of the applied table → *Upstream
	applied atomic.Uint64 // generation of the last applied table

	// mu guards the fields below and orders apply, without I/O: an engine may wait for it with a shard's mutex.
	mu       sync.Mutex
	entries  []*registry.Entry  // of the applied table
	remotes  map[string]*remote // by APIService
	carriers map[*registry.Backend]*carrier
	guarded  map[heldConn]struct{}
	shrunk   map[*carrier]struct{} // wait for closeUnused
	detached []*Upstream           // wait for moveDetached
}

// remote is the Upstream of an APIService. It survives changes of the trust.
type remote struct {
	*Upstream
	spec atomic.Pointer[registry.Backend]
}

// New returns Pools and registers their metrics.
func New(cfg Config) *Pools {
	p := &Pools{
		cfg:      cfg,
		shared:   newShared(cfg.Log(), cfg.Memory),
		remotes:  make(map[string]*remote),
		carriers: make(map[*registry.Backend]*carrier),
		guarded:  make(map[heldConn]struct{}),
		shrunk:   make(map[*carrier]struct{}),
	}
	metric.Register(cfg.Metrics, newCollector(p.upstreams, true))
	return p
}

// Run follows the table until ctx ends. Then it closes every connection.
func (p *Pools) Run(ctx context.Context) error {
	defer p.stop()
	identity := p.cfg.IdentityChanged()
	for {
		t := p.cfg.Tables.Table()
		p.apply(t.Generation(), t.Servers())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Superseded():
		case <-identity:
			identity = p.cfg.IdentityChanged()
			p.mu.Lock()
			for _, r := range p.remotes {
				r.drain()
			}
			for _, c := range p.carriers {
				c.drain()
			}
			p.mu.Unlock()
		}
	}
}

// Upstream returns the Upstream of a remote entry. Nil means that the APIService is gone.
func (p *Pools) Upstream(e *registry.Entry) *Upstream {
	if u, ok := p.byEntry.Load(e); ok {
		return u.(*Upstream) //nolint:forcetypeassert // nothing else is stored
	}
	// The request's table differs from Run's: if it is newer, apply it first. Then look the APIService up by name.
	if t := p.cfg.Tables.Table(); t.Generation() > p.applied.Load() {
		p.apply(t.Generation(), t.Servers())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.remotes[e.Name]; r != nil {
		return r.Upstream
	}
	return nil
}

// apply applies a table, unless a newer one was applied.
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
			p.updateRemote(r, e)
		}
	}
	for _, c := range changes { // last, to keep connections of a Backend that others use now
		if c.Old == nil || c.New != nil && c.New.Backend != nil || p.remotes[c.Old.Name] == nil {
			continue
		}
		r := p.remotes[c.Old.Name]
		delete(p.remotes, c.Old.Name)
		p.byEntry.Delete(c.Old)
		p.detach(r)
		r.update(&view{}, nil) // its requests finish
	}
	p.entries = entries
	p.closeUnused()
	p.moveDetached()
	p.applied.Store(generation) // after the maps: a reader that sees the generation must see its entries
}

func (p *Pools) updateRemote(r *remote, e *registry.Entry) {
	old, b, was := r.spec.Load(), e.Backend, r.view.Load()
	if was.entry == e {
		return
	}
	if old != b {
		p.move(r, b) // before the entry is published: its requests must not use the old connections
	}
	v := &view{
		entry:          e,
		maxInFlight:    int64(e.Settings.MaxInFlight),
		maxLongRunning: int64(e.Settings.MaxLongRunning),
		pingTimeout:    b.PingTimeout,
	}
	fewer := r.update(v, e.Endpoints)
	if c := r.carrier.Load(); fewer && c != nil {
		p.shrunk[c] = struct{}{}
	}
	p.byEntry.Delete(was.entry)
	p.byEntry.Store(e, r.Upstream)
	// A connection keeps its ping timeout; a new one applies to later connections. Where only the
	// trust differs, Guard decides about its own, over HTTP/1.1; move, about those of the carrier.
	if old != nil && old != b && (!old.SameService(b) || old.HTTP1 != b.HTTP1 || old.PingTimeout != b.PingTimeout) {
		r.drain()
	}
}

// Report ends the suspicion of an endpoint that has passed a probe, and takes over which protocol it speaks: requests
// need no handshake to learn it. What else a report says comes with the next table.
func (p *Pools) Report(r registry.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.remotes[r.Name]; of != nil && of.spec.Load() == r.Backend && r.Health == registry.Healthy {
		if r.HTTP2 { // not HTTP/1.1: another endpoint may speak both
			of.agreement().CompareAndSwap(nil, new("h2"))
		}
		of.mu.Lock()
		defer of.mu.Unlock()
		for e := of.endpoints[r.Address]; e != nil; e = e.via.Load() {
			e.suspicion.judged(r.Began)
		}
	}
}

func (p *Pools) newRemote(name string) *remote {
	r := &remote{}
	old, either := []string{"http/1.1"}, []string{"h2", "http/1.1"} // called for every request
	r.Upstream = newUpstream(name, p.shared, target{
		tls: func() (*tls.Config, error) { return p.cfg.TLS(name, r.spec.Load()) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) {
			return p.cfg.Guard(name, r.spec.Load(), chain)
		},
		dial:    p.cfg.Dial,
		signal:  func(address string, err error) { p.cfg.Signal(name, address, err) },
		observe: func(address string, took time.Duration) { p.cfg.Observe(name, address, took) },
		protocols: func() []string {
			if r.spec.Load().HTTP1 {
				return old
			}
			return either
		},
		maxConns: 16 << 10, // an HTTP/1.1 backend needs one connection for each request; the APIService's limits apply
		wait:     func() time.Duration { return 0 },
	})
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

// carrier is an Upstream with the HTTP/2 connections of one registry.Backend. They carry the requests of all
// APIServices that have the Backend. They are verified with the Backend's trust, which never changes, so no request
// goes over a connection that its APIService would not trust. Each APIService keeps its own limits, verdict, ejections
// and choice of endpoints. Guarded by Pools.mu.
type carrier struct {
	*Upstream
	of      *registry.Backend
	members map[*remote]struct{}
}

// move moves r's requests to the connections of another Backend.
func (p *Pools) move(r *remote, to *registry.Backend) {
	from, agreed := r.spec.Swap(to), r.agreement().Load()
	p.detach(r)
	if to.HTTP1 {
		return
	}
	c := p.carriers[to]
	if c == nil {
		c = p.newCarrier(to, r)
		p.carriers[to] = c
	}
	c.members[r] = struct{}{}
	if from != nil && from.SameService(to) { // another one may not speak it
		c.agreed.CompareAndSwap(nil, agreed)
	}
	r.carrier.Store(c)
	for _, e := range r.snapshot() {
		e.via.Store(c.provide(e.address))
	}
}

// newCarrier makes the carrier of a Backend. Its dials are counted, and its failures signaled, for reporter.
func (p *Pools) newCarrier(of *registry.Backend, reporter *remote) *carrier {
	c := &carrier{of: of, members: make(map[*remote]struct{})}
	c.Upstream = newUpstream(of.String(), p.shared, target{
		tls:   func() (*tls.Config, error) { return p.cfg.TLS(of.Owner, of) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) { return p.cfg.Guard(of.Owner, of, chain) },
		dial:  p.cfg.Dial,
		// The engine signals failures to APIServices with requests on the connection. This one is for idle ones.
		signal:  func(address string, err error) { c.reporter.Load().target.signal(address, err) },
		observe: func(string, time.Duration) {}, // members observe their own requests
	})
	c.reporter.Store(reporter)
	c.view.Store(&view{pingTimeout: of.PingTimeout})
	return c
}

func (u *Upstream) provide(address string) *endpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.provideLocked(address)
}

func (u *Upstream) provideLocked(address string) *endpoint {
	e := u.endpoints[address]
	if e == nil {
		e = newEndpoint(u, address)
		if c := u.carrier.Load(); c != nil {
			e.via.Store(c.provide(address))
		}
		u.endpoints[address] = e
	}
	return e
}

// detach removes r from its carrier: later decisions do not use the carrier's connections. moveDetached does the rest.
func (p *Pools) detach(r *remote) {
	c := r.carrier.Swap(nil)
	if c == nil {
		return
	}
	p.detached = append(p.detached, r.Upstream)
	delete(c.members, r)
	p.shrunk[c] = struct{}{}
	for m := range c.members {
		c.reporter.Store(m)
		return
	}
	delete(p.carriers, c.of)
}

// closeUnused closes connections to addresses that no member has any more, after all members have their new views.
func (p *Pools) closeUnused() {
	for c := range p.shrunk {
		used := make(map[string]bool)
		for m := range c.members {
			for _, e := range m.snapshot() {
				used[e.address] = true
			}
		}
		for _, e := range c.snapshot() {
			if !used[e.address] {
				c.mu.Lock()
				delete(c.endpoints, e.address)
				c.mu.Unlock()
				e.drain(true)
			}
		}
	}
	clear(p.shrunk)
}

// dialMeter returns the meter for dials: for a carrier it is a member's.
func (u *Upstream) dialMeter() *meter {
	if r := u.reporter.Load(); r != nil {
		return &r.meter
	}
	return &u.meter
}

// heldConn is a carrier's connection that still has long-running requests of an Upstream that has left the carrier.
type heldConn struct {
	u  *Upstream
	on *Conn
}

// moveDetached moves the requests of upstreams that apply has taken off their carriers; long-running ones stay and are
// guarded. The mutex must be held. The engine is called without it, because the engine needs it for pick.
func (p *Pools) moveDetached() {
	server, left := p.engine.Load(), p.detached
	p.detached = nil
	if len(left) == 0 || server == nil {
		return
	}
	p.spawn(func() { // short; the guards end with their connections
		whose := make(map[*engine.Upstream]*Upstream, len(left))
		for _, u := range left {
			whose[&u.forEngine] = u
		}
		var long []heldConn
		ours := func(of *engine.Upstream) bool { return whose[of] != nil }
		server.Leave(ours, func(of *engine.Upstream, c *tls.Conn) {
			if on, ok := p.dialled.Load(c); ok { // otherwise it has ended
				long = append(long, heldConn{whose[of], on.(*Conn)}) //nolint:forcetypeassert // nothing else is stored
			}
		})
		for _, h := range long {
			p.guardHeld(h, func() { server.End(&h.u.forEngine, h.on.Conn, false) })
		}
	})
}

// guardHeld ends long-running requests on a carrier's connection once their APIService's current trust rejects it, now
// or later, as with connections of its own. There is one guard for each heldConn, however often the APIService leaves.
func (p *Pools) guardHeld(h heldConn, end func()) {
	p.mu.Lock()
	_, guarded := p.guarded[h]
	p.guarded[h] = struct{}{}
	p.mu.Unlock()
	if guarded {
		return
	}
	p.spawn(func() {
		lost, release := h.u.target.guard(h.on.ConnectionState().PeerCertificates)
		ctx, cut := context.WithCancel(h.on.closed)
		h.on.watch(&dialing{drain: func() {}, cut: func(*Conn) { cut() }}, ctx.Done(), nil, lost, p.ctx.Done())
		release()
		cut()
		p.mu.Lock()
		delete(p.guarded, h) // before end: if the APIService leaves again, it needs a new guard
		p.mu.Unlock()
		if h.on.closed.Err() == nil && p.ctx.Err() == nil { // else its requests have ended
			end()
		}
	})
}
