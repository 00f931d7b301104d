package backend

import (
	"sync/atomic"
	"time"
)

// lane is what forwards frames over connections from DialH2. Its methods may be called by any goroutine, and none of them with a mutex held that Pick or Pools.Upstream
// needs, but for Find.
type lane interface {
	// Find returns what an Upstream's requests are known by, nil if there has been none. It must not wait.
	Find(u *Upstream) (what any)
	// Leave has requests choose again that wait for a shared connection, and returns for each of the whats on which shared connections its long-running ones are.
	Leave(whats []any) [][]*Conn
	// End ends the long-running ones on one connection.
	End(what any, on *Conn)
	// Eject sends elsewhere requests over shared connections to addresses that were found unhealthy for their Upstream while others are not; those that have no answer yet
	// and may be sent again.
	Eject(addresses map[any][]string)
}

// Slot is room for what the lane knows of an Upstream: it is found without a look-up, and goes when the Upstream goes. Empty, Load returns nil.
func (u *Upstream) Slot() *atomic.Value { return &u.slot }

// Slot is as Upstream's, for the endpoint.
func (l Lease) Slot() *atomic.Value { return &l.e.slot }

// leaver is who has shared connections until now.
type leaver struct {
	u    *Upstream
	what any
}

// held is a shared connection on which one that has left has long-running requests.
type held struct {
	u  *Upstream
	on *Conn
}

// Serve names the frame lane. There is one; until it is named nothing is shared.
func (p *Pools) Serve(l lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lane = l
}

// carryOut has the lane do what a table that was just applied means for requests over shared connections. It is called with the mutex held; the lane is asked without.
func (p *Pools) carryOut() {
	lane, left, ejected := p.lane, p.left, p.ejected
	p.left, p.ejected = nil, make(map[any][]string)
	var whats []any
	var whose []*Upstream
	for _, l := range left {
		if l.what != nil {
			whats, whose = append(whats, l.what), append(whose, l.u)
		}
	}
	if len(whats)+len(ejected) == 0 {
		return
	}
	p.owner.spawn(func() { // short; the guards that it leaves behind end with their connections
		if len(ejected) > 0 {
			lane.Eject(ejected)
		}
		if len(whats) == 0 {
			return
		}
		for i, conns := range lane.Leave(whats) {
			for _, c := range conns {
				p.guardHeld(held{whose[i], c}, func() { lane.End(whats[i], c) })
			}
		}
	})
}

// guardHeld ends long-running requests that have stayed on a connection which was shared, when their APIService as it is trusted now does not trust it: at once or later,
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
