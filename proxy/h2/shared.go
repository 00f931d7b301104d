package h2

import "crypto/tls"

// What upstreams need that share another endpoint's connections (Endpoint.Via).

// Share is what one upstream has under way over shared connections to an address.
type Share struct {
	Of   *Upstream // whose it is; never nil
	Name string    // Endpoint.Name
}

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
	e.reconsider(func(s *stream) bool { return of[s.plan.Forward] })
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

// reconsider has requests that wait for a shared connection choose again.
func (e *engine) reconsider(which func(*stream) bool) {
	for _, p := range e.pools {
		if p.waiting.n > 0 {
			e.elsewhere(p, func(s *stream) bool { return s.shared() && which(s) && e.anew(s) })
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

// EjectShares is Eject for what upstreams have under way over shared connections.
func (s *Server) EjectShares(list []Share) {
	set := make(map[Share]bool, len(list))
	for _, x := range list {
		set[x] = true
	}
	for _, sh := range s.shards {
		sh.lock()
		sh.e.ejectShares(set)
		sh.settle()
	}
}

// ejectShares is EjectShares.
func (e *engine) ejectShares(set map[Share]bool) {
	defer e.rescue(nil)
	which := func(s *stream) bool { return s.shared() && set[Share{s.plan.Forward, s.ep.Name}] }
	e.reconsider(which)
	for _, c := range append([]*conn(nil), e.conns...) {
		if c.pool != nil {
			e.again(c, which)
		}
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
