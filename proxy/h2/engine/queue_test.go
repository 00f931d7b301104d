package engine

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A body can be sent again only while all of it is kept.
func TestBodyIsLost(t *testing.T) {
	for _, tt := range []struct {
		name       string
		keep       bool
		read       int
		forget     bool
		lost       bool
		kept, size int
	}{
		{name: "unread", size: 10},
		{name: "read", read: 1, lost: true, size: 9},
		{name: "read and kept", keep: true, read: 1, kept: 1, size: 9},
		{name: "forgotten before it was read", keep: true, forget: true, size: 10},
		{name: "read, kept and forgotten", keep: true, read: 1, forget: true, lost: true, size: 9},
		{name: "read and forgotten", read: 1, forget: true, lost: true, size: 9},
	} {
		e, q := newRig(t).e, queue{keep: tt.keep}
		q.push(e, make([]byte, 10))
		if tt.read > 0 {
			q.read(e, tt.read)
		}
		if tt.forget {
			q.forget(e)
		}
		check.Same(t, tt.lost, q.lost, "%s: lost", tt.name)
		check.Same(t, tt.kept, q.kept, "%s: bytes kept", tt.name)
		check.Same(t, tt.size, q.size, "%s: bytes unread", tt.name)
		q.clear(e)
		check.Same(t, [4]int{}, [4]int{q.off, q.size, q.kept, int(q.chunks)}, "%s: cleared", tt.name)
	}
}

// A shard keeps a bounded number of chunks for reuse.
func TestFreeChunks(t *testing.T) {
	e := newRig(t).e
	var used []*chunk
	for range maxFreeChunks + 1 {
		used = append(used, e.chunk())
	}
	for _, c := range used {
		e.freeChunk(c)
	}
	check.Same(t, maxFreeChunks, e.freeChunks, "chunks for reuse")
	for e.chunks != nil {
		e.chunk()
	}
	check.Same(t, 0, e.freeChunks, "chunks for reuse, of which none is left")
}
