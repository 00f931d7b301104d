package engine

import (
	"cmp"
	"slices"

	"golang.org/x/net/http2"
)

// Eject implements Server.Eject, also for those that wait for a connection and were not sent yet.
func (e *Engine) Eject(ep *Endpoint) {
	defer e.rescue(nil)
	// The connections may be shared with others. After Retire, an endpoint has another pointer.
	here := func(s *stream) bool { return s.ep == ep || ep.Value != nil && ep.Value == s.ep.Value }
	for _, p := range e.pools[ep.carrier()] {
		e.moveWaiting(p, func(s *stream) bool { return here(s) && s.repick() })
	}
	for _, c := range slices.Clone(e.conns) {
		if c.pool != nil && c.pool.ep.Name == ep.carrier().Name { // also those that were retired
			// Those that may not be retried may still be answered.
			for s := range c.ordered(func(s *stream) bool { return !s.half[down].head && s.sending.again && here(s) }) {
				if s.mayRetry(failure{reason: ReasonLost}) {
					s.reset(down, http2.ErrCodeCancel)
					e.retry(s, failure{reason: ReasonEjected})
				}
			}
			// Its watches end soon if it is dead, and continue if it is only not ready.
			c.asked = 0
			c.sendPing()
		}
	}
}

// moveWaiting calls move for each request that waits for a connection. Those for which it returns false wait on.
func (e *Engine) moveWaiting(p *pool, move func(*stream) bool) {
	for s := range p.waiting.drain {
		if !move(s) {
			p.waiting.push(&s.wait)
		}
	}
}

func (s *stream) repick() bool {
	s.release()
	s.e.place(s)
	return true
}

// repickOther has a request choose another endpoint. It reports false if there is none.
func (s *stream) repickOther() bool { return s.move(append(slices.Clip(s.sending.tried), s.ep)) }

// tires has a request that waits for a dial choose again, once. A dial that takes long makes an endpoint the worse
// choice, but has not failed: no client must leave its own one for it.
func (s *stream) tires() bool {
	to, was := s.sending, s.sending.tired
	to.tired = was || s.e.now-to.since >= impatience
	return to.tired && !was && s.move(to.tried)
}

// move has a request choose an endpoint, if possible none of tried. It reports false if that has the same connections.
func (s *stream) move(tried []*Endpoint) (moved bool) {
	defer s.e.rescueStream(s)
	moved = true //nolint:wastedassign // choosing may panic: then the stream has ended
	ep := s.plan.Forward.Pick(s.sending.client, tried)
	if ep == nil {
		return false
	}
	if ep.carrier() == s.ep.carrier() {
		ep.Release()
		return false
	}
	s.release()
	s.e.put(s, ep)
	return true
}

// The rest is for upstreams whose endpoints share another's connections (Endpoint.Via).

// carrier returns the endpoint whose connections are used.
func (ep *Endpoint) carrier() *Endpoint { return cmp.Or(ep.Via, ep) }

// shared reports whether the request uses a connection that others share, or waits for one.
func (s *stream) shared() bool { return s.ep != nil && s.ep.Via != nil }

// Leave implements Server.Leave.
func (e *Engine) Leave(of func(*Upstream) bool, on func(*Upstream, *Conn)) {
	defer e.rescue(nil)
	for _, list := range e.pools {
		for _, p := range list {
			e.moveWaiting(p, func(s *stream) bool { return s.shared() && of(s.plan.Forward) && s.repick() })
		}
	}
	for _, c := range e.conns {
		if c.pool == nil {
			continue
		}
		notified := make(map[*Upstream]bool)
		for _, s := range c.streams {
			if u := s.plan.Forward; s.plan.LongRunning && s.shared() && of(u) && !notified[u] {
				notified[u] = true
				on(u, c)
			}
		}
	}
}

// EndOn ends long-running requests on the connection for which which returns true, see End of proxy/h2's Server.
func (e *Engine) EndOn(which func(*Conn) bool, of *Upstream, watches bool) {
	if i := slices.IndexFunc(e.conns, func(c *Conn) bool { return c.pool != nil && which(c) }); i >= 0 {
		e.cutLongRunning(e.conns[i], of, ReasonRetired, watches)
	}
}

// failedSharers reports a failed connection to the endpoints whose requests are on it.
func (e *Engine) failedSharers(c *Conn, err error) {
	notified := make(map[*Endpoint]bool)
	for _, s := range c.streams {
		if s.shared() && !notified[s.ep] {
			notified[s.ep] = true
			s.ep.Failed(err, false)
		}
	}
}
