package h2

import (
	"encoding/binary"
	"math/rand/v2"
)

// What is freed twice would be given to two connections, and one would read what is the other's. So
// everything that is kept for reuse is marked, and freeing it again is a panic, which ends the
// connection that it happens on.

// freed says that something is kept for reuse.
type freed bool

func (f *freed) free() {
	if *f {
		panic("freed twice")
	}
	*f = true
}

func (f *freed) use() { *f = false }

// freedMark is at the end of a buffer that is kept for reuse. It is chosen at random when the first is
// kept, so that nobody can send what looks like it. Whoever keeps buffers has one.
type freedMark uint64

const markSize = 8

func (m *freedMark) free(b []byte) {
	if *m == 0 {
		*m = freedMark(rand.Uint64() | 1) //nolint:gosec // ChaCha8, which the system seeds: unforeseeable, and soon made
	}
	end := b[cap(b)-markSize : cap(b)]
	if binary.NativeEndian.Uint64(end) == uint64(*m) {
		panic("buffer freed twice")
	}
	binary.NativeEndian.PutUint64(end, uint64(*m))
}

func (*freedMark) use(b []byte) { clear(b[cap(b)-markSize : cap(b)]) }
