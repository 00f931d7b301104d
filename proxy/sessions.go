package proxy

import (
	"maps"
	"net"
	"slices"
	"sync"
)

// sessions are the upgraded connections. net/http forgets a connection after Hijack, so a shutdown
// must close them here. Their number is bounded by the limits that each request passed.
type sessions struct {
	mu sync.Mutex // guards open
	// open :: the client's connection of each session
	open map[net.Conn]struct{}
}

// add counts a session until its caller calls end.
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

// count returns the number of open sessions.
func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// closeAll ends every session: when the client's side is closed, both pumps end.
func (s *sessions) closeAll() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the session is ended on purpose, so the error does not matter
	}
}

// Sessions returns the number of open upgraded sessions (exec, port-forward, consoles).
func (p *Proxy) Sessions() int { return p.sessions.count() }

// EndSessions ends all sessions: the last step of a drain.
func (p *Proxy) EndSessions() { p.sessions.closeAll() }
