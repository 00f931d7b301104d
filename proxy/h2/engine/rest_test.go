package engine

import (
	"slices"
	"strings"
	"testing"
)

func (s *spares) empty() bool {
	return s.streams == nil && s.chunks == nil && s.freeStreams == 0 && s.freeChunks == 0 && len(s.sendings) == 0
}

// A shard that nobody asks anything keeps nothing for reuse, and what it holds for others is untouched.
func TestSparesGoWhenTheShardRests(t *testing.T) {
	r := newRig(t)
	c := r.client()
	c.get(1) // a watch
	b := r.backend(0)
	b.headers(1, false, ":status=200")
	b.data(1, "event", false)
	c.get(3)
	b.respond(3, "done")
	c.see()
	if r.e.empty() || r.e.buffers.Size() == 0 {
		t.Fatal("a busy shard keeps nothing for reuse")
	}
	for range int(restAfter/TickEvery) - 2 {
		r.tick(TickEvery)
		pong(c, b)
	}
	if r.e.empty() || r.e.buffers.Size() == 0 {
		t.Error("spares are gone before it was quiet for long enough")
	}
	r.tick(3 * TickEvery)
	pong(c, b)
	if !r.e.empty() || r.e.buffers.Size() > 0 {
		t.Errorf("a shard at rest keeps %+v", r.e.spares)
	}
	b.data(1, "more", true)
	c.want(`DATA 1 "more" END`)
	c.get(5)
	b.respond(5, "again")
	c.want("HEADERS 5 :status=200", `DATA 5 "again" END`)
	r.clean()
}

// What always comes, as a lease that is renewed, keeps no spares.
func TestFewFramesAreRest(t *testing.T) {
	for _, tt := range []struct {
		name string
		gets uint32 // in each tick
		want bool
	}{
		{"a lease", 1, true},
		{"work", 4, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c := r.client()
			var b *peer
			id := uint32(1)
			for range 3 * int(restAfter/TickEvery) {
				for range tt.gets {
					c.get(id)
					if b == nil {
						b = r.backend(0)
					}
					b.respond(id, "done")
					id += 2
				}
				r.tick(TickEvery)
				pong(c, b)
				c.see()
			}
			if r.e.empty() != tt.want {
				t.Errorf("%d requests in %v: %+v", tt.gets, TickEvery, r.e.spares)
			}
		})
	}
}

// pong has peers answer pings.
func pong(peers ...*peer) {
	for _, p := range peers {
		if slices.ContainsFunc(p.see(), func(f string) bool { return strings.HasPrefix(f, "PING") }) {
			_ = p.fr.WritePing(true, [8]byte{})
			p.flush()
		}
	}
}
