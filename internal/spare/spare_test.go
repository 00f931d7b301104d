package spare

import "testing"

func TestFreedTwice(t *testing.T) {
	var s Buffers
	s.Put(make([]byte, 100))
	b := s.Get()
	s.Put(append(b, "content"...))
	defer func() {
		if recover() == nil {
			t.Error("no panic although the buffer was freed twice")
		}
	}()
	s.Put(b)
}

func TestDrop(t *testing.T) {
	var s Buffers
	s.Put(make([]byte, 0, 1000))
	if s.size != 1000 {
		t.Errorf("%d bytes are kept", s.size)
	}
	s.Drop()
	if b := s.Get(); b != nil || s.size != 0 {
		t.Errorf("%d bytes are left, and counted as %d", cap(b), s.size)
	}
}

func TestBounds(t *testing.T) {
	var s Buffers
	for _, n := range []int{0, markSize - 1, maxKept + 1} {
		if s.Put(make([]byte, n)); s.size != 0 {
			t.Errorf("a buffer of %d bytes is kept", n)
		}
	}
	if s.Put(make([]byte, markSize)); s.size != markSize {
		t.Error("a buffer with room for just the mark is not kept")
	}
	s.Drop()
	for range maxSize/maxKept + 1 {
		s.Put(make([]byte, maxKept))
	}
	if n := s.size; n > maxSize || n <= maxSize-maxKept {
		t.Errorf("%d bytes are kept, want %d", n, maxSize)
	}
}
