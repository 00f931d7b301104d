package spare

import (
	"bytes"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestFreedTwice(t *testing.T) {
	var s Buffers
	s.Put(make([]byte, 100))
	b := s.Get()
	s.Put(append(b, "content"...))
	defer func() {
		check.Same(t, true, recover() != nil, "no panic although the buffer was freed twice")
	}()
	s.Put(b)
}

func TestDrop(t *testing.T) {
	var s Buffers
	s.Put(make([]byte, 0, 1000))
	check.Same(t, 1000, s.size, "bytes kept")
	s.Drop()
	check.Same(t, [2]int{}, [2]int{cap(s.Get()), s.size}, "bytes left, and counted")
}

func TestBounds(t *testing.T) {
	var s Buffers
	for _, n := range []int{0, markSize - 1, maxKept + 1} {
		s.Put(make([]byte, n))
		check.Same(t, 0, s.size, "bytes kept of a buffer of %d", n)
	}
	s.Put(make([]byte, markSize))
	check.Same(t, markSize, s.size, "bytes kept of a buffer with room for just the mark")
	s.Drop()
	for range maxSize/maxKept + 1 {
		s.Put(make([]byte, maxKept))
	}
	check.Within(t, maxSize-maxKept+1, maxSize, s.size, "bytes that are kept")
}

// What waits has a buffer of its own size, not a large one that is free for others then.
func TestFit(t *testing.T) {
	for _, tt := range []struct{ have, n, most, freed int }{
		{0, 0, 0, 0}, {8 << 10, 1, 8 << 10, 0}, {64 << 10, 16 << 10, 64 << 10, 0},
		{64 << 10, 15 << 10, 20 << 10, 64 << 10}, {64 << 10, 0, 0, 64 << 10},
	} {
		var s Buffers
		b := append(make([]byte, 0, tt.have), bytes.Repeat([]byte("x"), tt.n)...)
		got := s.Fit(b)
		check.Same(t, string(b), string(got), "%+v: content", tt)
		check.Same(t, [2]int{tt.freed, 0}, [2]int{s.size, max(0, cap(got)-tt.most)}, "%+v: bytes freed, and too many", tt)
	}
}
