package engine

import "slices"

// This file is for upstreams whose endpoints share another's connections (Endpoint.Via).

// carrier returns the endpoint whose connections are used.
func (ep *Endpoint) carrier() *Endpoint {
	if ep.Via != nil {
		return ep.Via
	}
	return ep
}

// shared reports whether the request uses a connection that others share, or waits for one.
func (s *stream) shared() bool { return s.ep != nil && s.ep.Via != nil }

// Leave implements Server.Leave.
func (e *Engine) Leave(of map[*Upstream]bool, on func(*Upstream, *Conn)) {
	defer e.rescue(nil)
	for _, list := range e.pools {
		for _, p := range list {
			e.moveWaiting(p, func(s *stream) bool { return s.shared() && of[s.plan.Forward] && e.repick(s) })
		}
	}
	for _, c := range e.conns {
		if c.pool == nil {
			continue
		}
		notified := make(map[*Upstream]bool)
		for _, s := range c.streams {
			if u := s.plan.Forward; s.plan.LongRunning && s.shared() && of[u] && !notified[u] {
				notified[u] = true
				on(u, c)
			}
		}
	}
}

// EndOn ends the long-running requests on the connection for which which returns true: those of an
// upstream, or all if of is nil.
func (e *Engine) EndOn(which func(*Conn) bool, of *Upstream) {
	if i := slices.IndexFunc(e.conns, func(c *Conn) bool { return c.pool != nil && which(c) }); i >= 0 {
		e.cutLongRunning(e.conns[i], of, ReasonRetired)
	}
}

// failedSharers reports a failed connection to the endpoints whose requests are on it.
func (e *Engine) failedSharers(c *Conn, err error) {
	notified := make(map[*Endpoint]bool)
	for _, s := range c.streams {
		if s.shared() && !notified[s.ep] {
			notified[s.ep] = true
			e.failedEndpoint(s.ep, err)
		}
	}
}
