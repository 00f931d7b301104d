package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

func (s *spares) empty() bool {
	return s.streams == nil && s.chunks == nil && s.freeStreams == 0 && s.freeChunks == 0 && len(s.sendings) == 0
}

// An idle shard drops its spares, without an effect on its streams.
func TestSparesGoWhenTheShardRests(t *testing.T) {
	r, c := newClient(t)
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
		t.Error("spares are dropped before the shard was idle for long enough")
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
	if !r.e.Rests() {
		t.Error("two requests end the rest")
	}
	if c.gets(7, 7+2*few); r.e.Rests() {
		t.Error("the shard rests although it works")
	}
}

// A shard with little regular traffic, like the renewal of a lease, keeps no spares.
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
			r, c := newClient(t)
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

// A backend with a watch that falls silent in an idle shard is detected as soon as in a busy one.
func TestSilenceAtRest(t *testing.T) {
	for _, limit := range []time.Duration{time.Second / 2, time.Second, 2 * time.Second, 3 * time.Second, defaultPing} {
		for off := time.Duration(0); off < restEvery; off += 10 * time.Millisecond {
			r := newRig(t)
			r.ep.PingTimeout = limit
			c := r.client()
			c.get(1)
			b := r.backend(0)
			pace := func(after time.Duration) { // what a driver does
				r.e.Tick(after + r.e.Pace())
				r.run()
			}
			for r.e.now < 2*restAfter {
				pace(r.e.now)
				pong(b)
			}
			ticked := r.e.now
			r.e.Advance(ticked + off%r.e.Pace()) // its last frame comes between two ticks
			b.pong()
			last := r.e.now
			for pace(ticked); !b.c.cut && r.e.now < time.Minute; {
				pace(r.e.now)
			}
			if took := r.e.now - last; took > max(limit, limit*9/10+TickEvery) {
				t.Errorf("PingTimeout %v: closed after %v", limit, took)
			}
		}
	}
}

// A shard that drains ticks at the full rate, even if it was idle.
func TestDrainIsNoRest(t *testing.T) {
	r, c := newClient(t)
	c.get(1)
	check.Same(t, 250*time.Millisecond, r.e.Pace(), "between ticks at work")
	for range 2 * int(restAfter/TickEvery) {
		r.tick(TickEvery)
		pong(c, r.backends[0])
	}
	check.Same(t, 500*time.Millisecond, r.e.Pace(), "between ticks at rest")
	r.e.Drain(time.Second)
	check.Same(t, TickEvery, r.e.Pace(), "between ticks of a drain")
}

// pong makes peers answer PINGs.
func pong(peers ...*peer) {
	for _, p := range peers {
		if slices.ContainsFunc(p.see(), func(f string) bool { return strings.HasPrefix(f, "PING") }) {
			p.pong()
		}
	}
}
