package hold

import "sync/atomic"

// Source counts what the heads of one client address hold, over all its connections, so that no
// address holds more than a share of what is left. Their owner counts the bytes in the Bound, too.
type Source struct {
	b     *Bound
	key   string
	conns int // guarded by b.mu
	held  atomic.Int64
}

// Source returns the source of a new connection, which must call Leave when it ends.
func (b *Bound) Source(key string) *Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sources[key]
	if s == nil {
		if b.sources == nil {
			b.sources = make(map[string]*Source)
		}
		s = &Source{b: b, key: key}
		b.sources[key] = s
	}
	s.conns++
	return s
}

// Leave ends a connection's part. A nil Source counts nothing.
func (s *Source) Leave() {
	if s == nil {
		return
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.conns--; s.conns == 0 {
		delete(s.b.sources, s.key)
	}
}

// Add counts n more bytes, or fewer if n is negative.
func (s *Source) Add(n int64) {
	if s != nil {
		s.held.Add(n)
	}
}

// Greedy reports whether the source holds more than its share.
func (s *Source) Greedy() bool { return s != nil && s.held.Load() > s.b.Share() }

// Take asks for n more bytes for a connection that holds held, and counts them in the Bound, too. A
// connection gets a quarter of its address's share, because all strangers behind a load balancer
// have one address.
func (s *Source) Take(n, held int64) bool {
	if share := s.b.Share(); held+n > max(Least/2, share/shares) || s.held.Load()+n > share {
		return false
	}
	s.Give(-n)
	return true
}

// Give returns n bytes that Take has counted; a negative n is counted without asking.
func (s *Source) Give(n int64) {
	s.held.Add(-n)
	s.b.Add(-n)
}
