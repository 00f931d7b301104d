package proxy

import (
	"maps"
	"net"
	"slices"
	"sync"
)

// sessions are the upgraded connections: net/http forgets a connection that has been taken over, so their end at shutdown is ours to see to. They are
// bounded by the limits that each passed on its way here.
type sessions struct {
	mu sync.Mutex // guards open
	// open :: the client's connection of each session
	open map[net.Conn]struct{}
}

// add counts a session until end is called.
func (s *sessions) add(c net.Conn) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[net.Conn]struct{})
	}
	s.open[c] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, c)
	}
}

// count is how many sessions are open.
func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// closeAll ends every session: closing the client's side ends both pumps.
func (s *sessions) closeAll() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // a session that is ended on purpose has no use for the error
	}
}

// Sessions is how many upgraded sessions (exec, port-forward, consoles) are open.
func (p *Proxy) Sessions() int { return p.sessions.count() }

// EndSessions ends them all: the last step of a drain.
func (p *Proxy) EndSessions() { p.sessions.closeAll() }
