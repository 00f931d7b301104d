package spare

import "testing"

func TestFreedTwice(t *testing.T) {
	var s Buffers
	s.Put(make([]byte, 100))
	b := s.Get()
	s.Put(append(b, "content"...))
	defer func() {
		if recover() == nil {
			t.Error("it was freed twice, and nobody noticed")
		}
	}()
	s.Put(b)
}

func TestDrop(t *testing.T) {
	var s Buffers
	s.Put(make([]byte, 0, 1000))
	if s.Size() != 1000 {
		t.Errorf("%d bytes are kept", s.Size())
	}
	s.Drop()
	if b := s.Get(); b != nil || s.Size() != 0 {
		t.Errorf("%d bytes are left, and counted as %d", cap(b), s.Size())
	}
}
