// Package spare keeps buffers for reuse.
package spare

import (
	"encoding/binary"
	"math/rand/v2"
)

// Buffers keeps a few. What is kept twice would be given to two connections, and one would read what
// is the other's. So what is kept is marked at its end, and keeping it again is a panic, which ends the
// connection that it happens on.
type Buffers struct {
	mark uint64 // chosen at random when the first is kept, so that nobody can send what looks like it
	list [][]byte
	size int // of all of list
}

const (
	maxSize  = 4 << 20   // of all together: what a thousand connections write in one turn
	maxKept  = 256 << 10 // two write limits: larger ones were needed for huge heads
	markSize = 8
)

// Get returns an empty one; nil: there is none.
func (s *Buffers) Get() []byte {
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

// Put keeps a buffer that nobody uses any more, unless it is too large or there are enough.
func (s *Buffers) Put(b []byte) {
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

// Drop gives all of them up.
func (s *Buffers) Drop() { s.list, s.size = nil, 0 }

// Size is that of all of them.
func (s *Buffers) Size() int { return s.size }
