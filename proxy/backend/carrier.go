package backend

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// carrier is an Upstream with the HTTP/2 connections of one registry.Backend, which carry the requests of all APIServices that have it. They are verified by what the
// Backend says of trust, which never changes, so that none carries a request of somebody who would not trust it. Limits, verdicts, ejection and the choice of an endpoint
// remain each APIService's own. By Pools.mu.
type carrier struct {
	*Upstream
	of      *registry.Backend
	members map[*remote]struct{}
}

// move has r's requests go over the connections of another Backend.
func (p *Pools) move(r *remote, to *registry.Backend) {
	agreed := r.spoken().Load()
	p.part(r)
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

// newCarrier makes the connections of a Backend. What they cost is counted, and what is wrong with them told, as payer's.
func (p *Pools) newCarrier(of *registry.Backend, payer *remote) *carrier {
	only := []string{"h2"}
	c := &carrier{of: of, members: make(map[*remote]struct{})}
	c.Upstream = newUpstream(of.String(), p.owner, target{
		tls:   func() (*tls.Config, error) { return p.cfg.TLS(of.Owner, of) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) { return p.guard(of.Owner, of, chain) },
		dial:  p.cfg.Dial,
		// Those whose requests are on a connection hear of it from the engine. One more is for a connection that nobody uses.
		signal:    func(address string, err error) { c.payer.Load().target.signal(address, err) },
		observe:   func(string, time.Duration) {}, // each member is told of its own requests
		protocols: func() []string { return only },
		maxConns:  1, // of RoundTrip, which nobody calls: the engine has its own bound
		doubt:     suspicionTime,
	})
	c.payer.Store(payer)
	c.view.Store(&view{pingTimeout: of.PingTimeout})
	return c
}

// provide returns the endpoint with an address, which it makes if need be.
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

// part takes r off its Backend's connections: no request that is decided from here on goes over them. leave does the rest.
func (p *Pools) part(r *remote) {
	c := r.on
	if c == nil {
		return
	}
	r.on = nil
	r.carrier.Store(nil)
	p.left = append(p.left, r.Upstream)
	delete(c.members, r)
	p.thinned[c] = struct{}{}
	for m := range c.members {
		c.payer.Store(m)
		return
	}
	delete(p.carriers, c.of)
}

// forsake closes connections to addresses that no member has any more, after all have been told where else to go.
func (p *Pools) forsake() {
	for c := range p.thinned {
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
				e.remove()
			}
		}
	}
	clear(p.thinned)
}

// counted is the meter of what is dialled: a carrier's connection is counted by one of its members.
func (u *Upstream) counted() *meter {
	if r := u.payer.Load(); r != nil {
		return &r.meter
	}
	return &u.meter
}

// all are the upstreams with the carriers.
func (p *Pools) all() []*Upstream {
	list := p.upstreams()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.carriers {
		list = append(list, c.Upstream)
	}
	return list
}
