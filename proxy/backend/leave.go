package backend

import (
	"crypto/tls"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// Serve names the engine.
func (p *Pools) Serve(s *h2.Server) { p.owner.serve(s) }

// Serve names the engine.
func (l *Local) Serve(s *h2.Server) { l.owner.serve(s) }

// held is a carrier's connection on which one that has left has long-running requests.
type held struct {
	u  *Upstream
	on *Conn
}

// leave has requests of those that a table which was just applied has taken off their carriers choose again, or guarded. It is called with the mutex held; the engine is asked without,
// because it needs that for pick.
func (p *Pools) leave() {
	engine, left := p.owner.serving(), p.left
	p.left = nil
	if len(left) == 0 || engine == nil {
		return
	}
	p.owner.spawn(func() { // short; the guards that it leaves behind end with their connections
		of := make([]*h2.Upstream, len(left))
		whose := make(map[*h2.Upstream]*Upstream, len(left))
		for i, u := range left {
			of[i] = &u.frames
			whose[of[i]] = u
		}
		var long []held
		engine.Leave(of, func(of *h2.Upstream, c *tls.Conn) {
			if on, ok := p.owner.dialled.Load(c); ok { // else it has ended
				long = append(long, held{whose[of], on.(*Conn)}) //nolint:forcetypeassert // nothing else is stored
			}
		})
		for _, h := range long {
			p.guardHeld(h, func() { engine.End(&h.u.frames, h.on.Conn) })
		}
	})
}

// guardHeld ends long-running requests that have stayed on a carrier's connection, when their APIService as it is trusted now does not trust it: at once or later,
// as with connections of its own. There is one guard for each, however often the APIService leaves.
func (p *Pools) guardHeld(h held, end func()) {
	p.mu.Lock()
	_, guarded := p.held[h]
	p.held[h] = struct{}{}
	p.mu.Unlock()
	if guarded {
		return
	}
	p.owner.spawn(func() {
		cut := p.outlast(h)
		p.mu.Lock()
		delete(p.held, h) // before the end: who leaves again afterwards has a guard of its own
		p.mu.Unlock()
		if cut {
			end()
		}
	})
}

// outlast returns when the connection has ended, or true when the long-running requests on it have to.
func (p *Pools) outlast(h held) (cut bool) {
	lost, release := h.u.target.guard(h.on.ConnectionState().PeerCertificates)
	defer release()
	select {
	case <-lost:
	case <-h.on.closed:
		return false
	case <-p.owner.ctx.Done():
		return false
	}
	grace := time.NewTimer(watchGrace)
	defer grace.Stop()
	select {
	case <-grace.C:
		return true
	case <-h.on.closed:
	case <-p.owner.ctx.Done():
	}
	return false
}
