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
	for range int(restAfter / TickEvery) {
		r.tick(TickEvery)
		pong(c, b)
	}
	if r.e.empty() || r.e.buffers.Size() == 0 {
		t.Error("spares are gone before it was quiet for long enough")
	}
	r.tick(2 * TickEvery)
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

// pong has peers answer pings.
func pong(peers ...*peer) {
	for _, p := range peers {
		if slices.ContainsFunc(p.see(), func(f string) bool { return strings.HasPrefix(f, "PING") }) {
			_ = p.fr.WritePing(true, [8]byte{})
			p.flush()
		}
	}
}
