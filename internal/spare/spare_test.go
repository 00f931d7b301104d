package spare

import (
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
