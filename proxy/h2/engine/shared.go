package engine

import "slices"

// What upstreams need that share another endpoint's connections (Endpoint.Via).

// carrier is the endpoint whose connections are used.
func (ep *Endpoint) carrier() *Endpoint {
	if ep.Via != nil {
		return ep.Via
	}
	return ep
}

// shared reports whether the request goes, or is to go, over a connection that others use, too.
func (s *stream) shared() bool { return s.ep != nil && s.ep.Via != nil }

// Leave is Server.Leave.
func (e *Engine) Leave(of map[*Upstream]bool, on func(*Upstream, *Conn)) {
	defer e.rescue(nil)
	for _, p := range e.pools {
		if p.waiting.n > 0 {
			e.elsewhere(p, func(s *stream) bool { return s.shared() && of[s.plan.Forward] && e.anew(s) })
		}
	}
	for _, c := range e.conns {
		if c.pool == nil {
			continue
		}
		told := make(map[*Upstream]bool)
		for _, s := range c.streams {
			if u := s.plan.Forward; s.plan.LongRunning && s.shared() && of[u] && !told[u] {
				told[u] = true
				on(u, c)
			}
		}
	}
}

// EndOn ends an upstream's long-running requests on the connection that which knows.
func (e *Engine) EndOn(which func(*Conn) bool, of *Upstream) {
	if i := slices.IndexFunc(e.conns, func(c *Conn) bool { return c.pool != nil && which(c) }); i >= 0 {
		e.cutLongRunning(e.conns[i], of, ReasonRetired)
	}
}

// failedSharers tells those whose requests are on a connection that has failed.
func (e *Engine) failedSharers(c *Conn, err error) {
	told := make(map[*Endpoint]bool)
	for _, s := range c.streams {
		if s.shared() && !told[s.ep] {
			told[s.ep] = true
			e.failedEndpoint(s.ep, err)
		}
	}
}
