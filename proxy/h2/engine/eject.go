package engine

import (
	"slices"

	"golang.org/x/net/http2"
)

// Eject sends elsewhere what an endpoint that was found unhealthy still holds up: requests that wait for a connection
// to it, which have cost nobody anything, and those that wait for its answer and may be sent again.
func (e *Engine) Eject(ep *Endpoint) {
	defer e.rescue(nil)
	p := e.pools[ep.carrier()]
	if p == nil {
		return
	}
	here := func(s *stream) bool { return s.ep == ep } // others may go over the same connections
	e.elsewhere(p, func(s *stream) bool { return here(s) && e.anew(s) })
	for _, c := range slices.Clone(p.conns) {
		e.again(c, here)
	}
}

// elsewhere has each request that waits for a connection moved. Those that move declines wait on.
func (e *Engine) elsewhere(p *pool, move func(*stream) bool) {
	for n := p.waiting.n; n > 0; n-- { // those that come back are behind them
		s := p.waiting.pop()
		if s == nil {
			return
		}
		if !move(s) {
			p.waiting.push(&s.wait)
		}
	}
}

// anew has a request choose among all endpoints.
func (e *Engine) anew(s *stream) bool {
	e.release(s)
	e.place(s)
	return true
}

// another has a request choose another endpoint. If there is none, it is not moved.
func (e *Engine) another(s *stream) bool {
	was := s.ep
	ep := s.plan.Forward.Pick(append(slices.Clip(s.sending.tried), was))
	if ep == nil {
		return false
	}
	if ep.carrier() == was.carrier() {
		if ep.Release != nil {
			ep.Release()
		}
		return false
	}
	e.release(s)
	e.put(s, ep)
	return true
}

// again sends elsewhere requests that wait for an answer and may be sent again. The others may still be answered.
func (e *Engine) again(c *Conn, which func(*stream) bool) {
	for _, id := range c.ids(func(s *stream) bool { return !s.half[down].head && s.sending.again && which(s) }) {
		if s := c.streams[id]; s != nil && e.mayRetry(s, failure{reason: ReasonLost}) {
			e.reset(s, down, http2.ErrCodeCancel)
			e.retry(s, ReasonEjected)
		}
	}
}

// ids are of streams, in their order.
func (c *Conn) ids(which func(*stream) bool) []uint32 {
	var ids []uint32
	for id, s := range c.streams {
		if which(s) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
