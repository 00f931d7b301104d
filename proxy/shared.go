package proxy

import (
	"crypto/tls"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// sharing is the endpoint of a lease whose requests go over another endpoint's connections.
func (l *frameLane) sharing(u *backend.Upstream, lease backend.Lease, via *h2.Endpoint) *h2.Endpoint {
	return l.endpoint(lease, func(known *h2.Endpoint) bool { return known.Via == via }, func() *h2.Endpoint {
		return &h2.Endpoint{
			Name: lease.Address(), Via: via, Value: lease, Release: lease.Release, Lost: lease.Lost, Failed: func(err error) { u.Signal(lease.Address(), err) },
		}
	})
}

// own is the endpoint of a lease with connections of its own.
func (l *frameLane) own(u *backend.Upstream, lease backend.Lease) *h2.Endpoint {
	return l.endpoint(lease, func(known *h2.Endpoint) bool { return known.Via == nil }, func() *h2.Endpoint { return l.newEndpoint(u, lease) })
}

// endpoint returns what is known of a lease if it fits, or makes another in its place: it has begun to share connections, or ended.
func (l *frameLane) endpoint(lease backend.Lease, fits func(*h2.Endpoint) bool, fresh func() *h2.Endpoint) *h2.Endpoint {
	slot := lease.Slot()
	for {
		was := slot.Load()
		if known, _ := was.(*h2.Endpoint); known != nil && fits(known) {
			return known
		}
		if next := fresh(); slot.CompareAndSwap(was, next) {
			return next
		}
	}
}

// Find is for backend.Pools. A request that is under way has been known before.
func (l *frameLane) Find(u *backend.Upstream) any {
	if known, ok := u.Slot().Load().(*frameUpstream); ok {
		return known.frames
	}
	return nil
}

// Leave is for backend.Pools.
func (l *frameLane) Leave(whats []any) [][]*backend.Conn {
	of := make([]*h2.Upstream, len(whats))
	at := make(map[*h2.Upstream]int, len(whats))
	for i, w := range whats {
		of[i], _ = w.(*h2.Upstream)
		at[of[i]] = i
	}
	on := make([][]*backend.Conn, len(whats))
	l.server.Leave(of, func(u *h2.Upstream, c *tls.Conn) {
		if known, ok := l.dialled.Load(c); ok { // else it has ended
			on[at[u]] = append(on[at[u]], known.(*frameBackend).conn) //nolint:forcetypeassert // nothing else is stored
		}
	})
	return on
}

// End is for backend.Pools.
func (l *frameLane) End(what any, on *backend.Conn) {
	if u, ok := what.(*h2.Upstream); ok {
		l.server.End(u, on.Conn)
	}
}

// Eject is for backend.Pools.
func (l *frameLane) Eject(addresses map[any][]string) {
	var shares []h2.Share
	for what, list := range addresses {
		if u, ok := what.(*h2.Upstream); ok {
			for _, a := range list {
				shares = append(shares, h2.Share{Of: u, Name: a})
			}
		}
	}
	l.server.EjectShares(shares)
}
