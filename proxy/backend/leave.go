package backend

import (
	"crypto/tls"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// Serve sets the engine.
func (p *Pools) Serve(s *h2.Server) { p.shared.engine.Store(s) }

// Serve sets the engine.
func (l *Local) Serve(s *h2.Server) { l.shared.engine.Store(s) }

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
	engine, left := p.shared.engine.Load(), p.detached
	p.detached = nil
	if len(left) == 0 || engine == nil {
		return
	}
	p.shared.spawn(func() { // short; the guards end with their connections
		of := make([]*h2.Upstream, len(left))
		whose := make(map[*h2.Upstream]*Upstream, len(left))
		for i, u := range left {
			of[i] = &u.frames
			whose[of[i]] = u
		}
		var long []heldConn
		engine.Leave(of, func(of *h2.Upstream, c *tls.Conn) {
			if on, ok := p.shared.dialled.Load(c); ok { // otherwise it has ended
				long = append(long, heldConn{whose[of], on.(*Conn)}) //nolint:forcetypeassert // nothing else is stored
			}
		})
		for _, h := range long {
			p.guardHeld(h, func() { engine.End(&h.u.frames, h.on.Conn) })
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
	select {
	case <-lost:
	case <-h.on.closed:
		return false
	case <-p.shared.ctx.Done():
		return false
	}
	select {
	case <-time.After(watchGrace):
		return true
	case <-h.on.closed:
	case <-p.shared.ctx.Done():
	}
	return false
}
