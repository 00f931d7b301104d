package backend

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// anchor is a trust that never changes (certs/trust.Anchor): connections that were verified by one are verified for all whose anchor has the same key. Config.Share has it.
type anchor struct {
	key   any
	tls   func() *tls.Config
	guard func(chain []*x509.Certificate) (lost <-chan struct{}, release func())
}

// groupKey is what APIServices must have in common to share connections: the Service and port, and all that makes a connection what it is. What is the same for all
// (the proxy client certificate, the dialer, refused addresses) is not in it.
type groupKey struct {
	namespace, service string
	port               int32
	ping               time.Duration
	trust              any
}

// group are the APIServices that have one groupKey. From the second on they have a carrier: an Upstream of its own with the HTTP/2 connections of the frame lane that
// they share, verified against their common anchor, so that none carries a request of somebody who would not trust it. Limits, verdicts, ejection and the choice of an
// endpoint remain each APIService's own. An APIService without peers has nothing to do with any of this. By Pools.mu.
type group struct {
	key     groupKey
	members map[*remote]struct{}
	carrier *Upstream // nil: there are not two members yet
}

// candidate is an APIService that shares nothing, and what it was when asked.
type candidate struct {
	r    *remote
	spec *registry.Backend
}

// regroup has those share connections that may by now. The trust is asked without the mutex: it may have a whole table to take in, and requests wait for the mutex.
func (p *Pools) regroup() {
	for _, c := range p.alone() {
		if key, tls, guard := p.cfg.Share(c.spec); key != nil {
			p.admit(c, anchor{key, tls, guard})
		}
	}
}

func (p *Pools) alone() []candidate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Share == nil || p.owner.serving() == nil {
		return nil
	}
	var list []candidate
	for _, r := range p.remotes {
		if b := r.spec.Load(); r.group == nil && !b.HTTP1 {
			list = append(list, candidate{r, b})
		}
	}
	return list
}

// admit makes c a member of the group that its trust belongs to, unless it has changed meanwhile.
func (p *Pools) admit(c candidate, a anchor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, b := c.r, c.spec
	if r.group != nil || r.spec.Load() != b || p.remotes[r.name] != r {
		return
	}
	key := groupKey{namespace: b.Namespace, service: b.Service, port: b.Port, ping: r.view.Load().pingTimeout, trust: a.key}
	g := p.groups[key]
	if g == nil {
		g = &group{key: key, members: make(map[*remote]struct{})}
		p.groups[key] = g
	}
	g.members[r] = struct{}{}
	r.group = g
	switch {
	case g.carrier != nil:
		r.join(g.carrier)
	case len(g.members) > 1:
		g.carrier = p.newCarrier(g.key, a, r)
		for m := range g.members {
			m.join(g.carrier)
		}
	}
}

// newCarrier makes the connections that a group shares. What they cost is counted, and what is wrong with them told, as payer's.
func (p *Pools) newCarrier(key groupKey, a anchor, payer *remote) *Upstream {
	only := []string{"h2"}
	var c *Upstream
	c = newUpstream(fmt.Sprintf("%s/%s:%d", key.namespace, key.service, key.port), p.owner, target{
		tls:   func() (*tls.Config, error) { return a.tls(), nil },
		guard: a.guard,
		dial:  p.cfg.Dial,
		// Those whose requests are on a connection hear of it from the lane. One more is for a connection that nobody uses.
		signal:    func(address string, err error) { c.payer.Load().target.signal(address, err) },
		observe:   func(string, time.Duration) {}, // each member is told of its own requests
		protocols: func() []string { return only },
		maxConns:  1, // of RoundTrip, which nobody calls: the lane has its own bound
	})
	c.payer.Store(payer)
	c.view.Store(&view{pingTimeout: key.ping})
	return c
}

// join has r's endpoints reached over c, and those that come later.
func (r *remote) join(c *Upstream) {
	if agreed := r.agreed.Load(); agreed != 0 {
		c.agreed.CompareAndSwap(0, agreed)
	}
	r.carrier.Store(c)
	for _, e := range r.snapshot() {
		e.share(c)
		e.recall() // its own are of no use any more
	}
}

// share has requests go over c's connections to the same address.
func (e *endpoint) share(c *Upstream) {
	e.via.Store(c.provide(e.address))
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

// part takes r off the connections that it shares: no request that is decided from here on goes over them. leave does the rest.
func (p *Pools) part(r *remote) {
	g := r.group
	if g == nil {
		return
	}
	r.group = nil
	delete(g.members, r)
	p.thinned[g] = struct{}{}
	if g.carrier != nil {
		r.carrier.Store(nil)
		p.left = append(p.left, r.Upstream)
	}
	if len(g.members) == 0 {
		delete(p.groups, g.key)
		if g.carrier != nil {
			g.carrier.close()
		}
		return
	}
	if g.carrier != nil && g.carrier.payer.Load() == r {
		for m := range g.members {
			g.carrier.payer.Store(m)
			break
		}
	}
}

// forsake closes carriers' connections to addresses that no member has any more.
func (p *Pools) forsake() {
	for g := range p.thinned {
		if g.carrier != nil {
			g.forsake()
		}
	}
	clear(p.thinned)
}

func (g *group) forsake() {
	used := make(map[string]bool)
	for m := range g.members {
		for _, e := range m.snapshot() {
			used[e.address] = true
		}
	}
	for _, e := range g.carrier.snapshot() {
		if !used[e.address] {
			g.carrier.mu.Lock()
			delete(g.carrier.endpoints, e.address)
			g.carrier.mu.Unlock()
			e.remove()
		}
	}
}

// via is the place of a shared carrier that requests under this Lease are sent over, and its Upstream. The zero Lease: they have connections of their own.
func (l Lease) via() (Lease, *Upstream) {
	if l.e == nil {
		return Lease{}, nil
	}
	via, c := l.e.via.Load(), l.e.up.carrier.Load()
	if via == nil || via.up != c { // the Upstream has left it
		return Lease{}, nil
	}
	return Lease{via}, c
}

// counted is the meter of what is dialled: a shared connection is counted by one of those that share it.
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
	for _, g := range p.groups {
		if g.carrier != nil {
			list = append(list, g.carrier)
		}
	}
	return list
}
