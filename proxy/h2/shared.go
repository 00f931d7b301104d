package h2

import "crypto/tls"

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

// Leave is told that upstreams share connections no more: their requests that wait for a shared one choose again, those that were sent go on. on is called for each
// connection that long-running ones are on; it must not block. What was picked before Leave is called is seen by it.
func (s *Server) Leave(of []*Upstream, on func(of *Upstream, c *tls.Conn)) {
	set := make(map[*Upstream]bool, len(of))
	for _, u := range of {
		set[u] = true
	}
	for _, sh := range s.shards {
		sh.lock()
		sh.e.leave(set, func(u *Upstream, c *conn) {
			if c.link != nil {
				on(u, c.link.tls)
			}
		})
		sh.settle()
	}
}

// leave is Server.Leave.
func (e *engine) leave(of map[*Upstream]bool, on func(*Upstream, *conn)) {
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

// End ends an upstream's long-running requests on one connection, which others go on to use.
func (s *Server) End(of *Upstream, on *tls.Conn) {
	for _, sh := range s.shards {
		sh.lock()
		for _, c := range sh.e.conns {
			if c.pool != nil && c.link != nil && c.link.tls == on {
				sh.e.cutLongRunning(c, of, ReasonRetired)
				break
			}
		}
		sh.settle()
	}
}

// failedSharers tells those whose requests are on a connection that has failed.
func (e *engine) failedSharers(c *conn, err error) {
	told := make(map[*Endpoint]bool)
	for _, s := range c.streams {
		if s.shared() && !told[s.ep] {
			told[s.ep] = true
			e.failedEndpoint(s.ep, err)
		}
	}
}
