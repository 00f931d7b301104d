// Package spare keeps buffers for reuse. Buffers are safe for concurrent use.
package spare

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// Buffers is a small free list. A buffer that is freed twice would be given to two connections, and
// one would read the other's data. So Put marks the end of each buffer, and panics if the mark is
// already there. The panic ends the connection on which it happens.
type Buffers struct {
	mu   sync.Mutex // guards the following fields
	mark uint64     // random, chosen at the first Put, so that a peer cannot send bytes that look like it
	list [][]byte
	size int // total capacity of list
}

const (
	maxSize  = 4 << 20   // bytes in total: what a thousand connections write in one turn
	maxKept  = 256 << 10 // two write limits: larger buffers were needed for huge heads
	markSize = 8
)

// Get returns an empty buffer. Nil means that there is none.
func (s *Buffers) Get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	if n == 0 {
		return nil
	}
	b := s.list[n-1]
	s.list[n-1] = nil
	s.list = s.list[:n-1]
	s.size -= cap(b)
	clear(b[cap(b)-markSize : cap(b)])
	return b
}

// Put frees a buffer that is no longer used. It keeps none that is too large, or beyond maxSize.
func (s *Buffers) Put(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := cap(b)
	if n < markSize || n > maxKept || s.size+n > maxSize {
		return
	}
	if s.mark == 0 {
		s.mark = rand.Uint64() | 1 //nolint:gosec // ChaCha8, which the system seeds: unforeseeable, and soon made
	}
	end := b[n-markSize : n]
	if binary.NativeEndian.Uint64(end) == s.mark {
		panic("buffer freed twice")
	}
	binary.NativeEndian.PutUint64(end, s.mark)
	s.list = append(s.list, b[:0])
	s.size += n
}

// Fit returns b. If that is far larger than its content, it frees b, and returns a copy: what waits for a peer that
// does not read counts by its length, and must not hold a large buffer that others have left.
func (s *Buffers) Fit(b []byte) []byte {
	const small, far = 8 << 10, 4
	if cap(b) > max(small, far*len(b)) {
		defer s.Put(b)
		return append([]byte(nil), b...)
	}
	return b
}

// Drop releases all buffers.
func (s *Buffers) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.size = nil, 0
}
