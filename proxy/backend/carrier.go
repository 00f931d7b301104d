package backend

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
)

// carrier is an Upstream with the HTTP/2 connections of one registry.Backend. They carry the
// requests of all APIServices that have the Backend. They are verified with the Backend's trust,
// which never changes, so no request goes over a connection that its APIService would not trust.
// Each APIService keeps its own limits, verdict, ejections and choice of endpoints. Guarded by
// Pools.mu.
type carrier struct {
	*Upstream
	of      *registry.Backend
	members map[*remote]struct{}
}

// move moves r's requests to the connections of another Backend.
func (p *Pools) move(r *remote, to *registry.Backend) {
	agreed := r.agreement().Load()
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
	c.agreed.CompareAndSwap(0, agreed)
	r.on = c
	r.carrier.Store(c.Upstream)
	for _, e := range r.snapshot() {
		e.via.Store(c.provide(e.address))
	}
}

// newCarrier makes the carrier of a Backend. Its dials are counted, and its failures signaled, for
// reporter.
func (p *Pools) newCarrier(of *registry.Backend, reporter *remote) *carrier {
	only := []string{"h2"}
	c := &carrier{of: of, members: make(map[*remote]struct{})}
	c.Upstream = newUpstream(of.String(), p.shared, target{
		tls:   func() (*tls.Config, error) { return p.cfg.TLS(of.Owner, of) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) { return p.cfg.Guard(of.Owner, of, chain) },
		dial:  p.cfg.Dial,
		// The engine signals failures to APIServices with requests on the connection. This signal
		// is for idle connections.
		signal:    func(address string, err error) { c.reporter.Load().target.signal(address, err) },
		observe:   func(string, time.Duration) {}, // members observe their own requests
		protocols: func() []string { return only },
		maxConns:  1, // for RoundTrip, which is never called: the engine has its own limit
		doubt:     suspicionTime,
	})
	c.reporter.Store(reporter)
	c.view.Store(&view{pingTimeout: of.PingTimeout})
	return c
}

// provide returns the endpoint with an address. It makes one if there is none.
func (u *Upstream) provide(address string) *endpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.endpoints[address]
	if e == nil {
		e = newEndpoint(u, address)
		u.endpoints[address] = e
	}
	return e
}

// detach removes r from its carrier: later decisions do not use the carrier's connections.
// moveDetached does the rest.
func (p *Pools) detach(r *remote) {
	c := r.on
	if c == nil {
		return
	}
	r.on = nil
	r.carrier.Store(nil)
	p.detached = append(p.detached, r.Upstream)
	delete(c.members, r)
	p.shrunk[c] = struct{}{}
	for m := range c.members {
		c.reporter.Store(m)
		return
	}
	delete(p.carriers, c.of)
}

// closeUnused closes connections to addresses that no member has any more. It runs after all
// members have their new views.
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

// SetEngine sets the engine.
func (p *Pools) SetEngine(s *h2.Server) { p.shared.engine.Store(s) }

// SetEngine sets the engine.
func (l *Local) SetEngine(s *h2.Server) { l.shared.engine.Store(s) }

// heldConn is a carrier's connection that still has long-running requests of an Upstream that has
// left the carrier.
type heldConn struct {
	u  *Upstream
	on *Conn
}

// moveDetached moves the requests of upstreams that apply has taken off their carriers;
// long-running ones stay and are guarded. The mutex must be held. The engine is called without it,
// because the engine needs it for pick.
func (p *Pools) moveDetached() {
	server, left := p.shared.engine.Load(), p.detached
	p.detached = nil
	if len(left) == 0 || server == nil {
		return
	}
	p.shared.spawn(func() { // short; the guards end with their connections
		whose := make(map[*engine.Upstream]*Upstream, len(left))
		for _, u := range left {
			whose[&u.forEngine] = u
		}
		var long []heldConn
		server.Leave(func(of *engine.Upstream) bool { return whose[of] != nil }, func(of *engine.Upstream, c *tls.Conn) {
			if on, ok := p.shared.dialled.Load(c); ok { // otherwise it has ended
				long = append(long, heldConn{whose[of], on.(*Conn)}) //nolint:forcetypeassert // nothing else is stored
			}
		})
		for _, h := range long {
			p.guardHeld(h, func() { server.End(&h.u.forEngine, h.on.Conn) })
		}
	})
}

// guardHeld ends long-running requests on a carrier's connection once their APIService's current
// trust rejects it, now or later, as with connections of its own. There is one guard for each
// heldConn, even if the APIService leaves several times.
func (p *Pools) guardHeld(h heldConn, end func()) {
	p.mu.Lock()
	_, guarded := p.guarded[h]
	p.guarded[h] = struct{}{}
	p.mu.Unlock()
	if guarded {
		return
	}
	p.shared.spawn(func() {
		cut := p.awaitEnd(h)
		p.mu.Lock()
		delete(p.guarded, h) // before end: if the APIService leaves again, it needs a new guard
		p.mu.Unlock()
		if cut {
			end()
		}
	})
}

// awaitEnd returns false when the connection has ended, and true when its long-running requests
// must end.
func (p *Pools) awaitEnd(h heldConn) (cut bool) {
	lost, release := h.u.target.guard(h.on.ConnectionState().PeerCertificates)
	defer release()
	var grace <-chan time.Time
	for {
		select {
		case <-lost:
			lost, grace = nil, time.After(watchGrace)
		case <-grace:
			return true
		case <-h.on.closed.Done():
			return false
		case <-p.shared.ctx.Done():
			return false
		}
	}
}
