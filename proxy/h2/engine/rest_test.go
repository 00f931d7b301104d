package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func (s *spares) empty() bool {
	return s.streams == nil && s.chunks == nil && s.freeStreams == 0 && s.freeChunks == 0 && len(s.sendings) == 0
}

// keeps reports whether the engine has a buffer for reuse.
func (r *rig) keeps() bool {
	b := r.e.buffers.Get()
	r.e.buffers.Put(b)
	return b != nil
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
	if r.e.empty() || !r.keeps() {
		t.Fatal("a busy shard keeps nothing for reuse")
	}
	for range int(restAfter/TickEvery) - 2 {
		r.tick(TickEvery)
		pong(c, b)
	}
	if r.e.empty() || !r.keeps() {
		t.Error("spares are dropped before the shard was idle for long enough")
	}
	r.tick(3 * TickEvery)
	pong(c, b)
	if !r.e.empty() || r.keeps() {
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

// A backend that answers no request any more is detected in an idle shard as soon as in a busy one,
// however long it had nothing to answer, and however often it was asked.
func TestSilenceAtRest(t *testing.T) {
	for _, limit := range []time.Duration{time.Second / 2, time.Second, 2 * time.Second, 3 * time.Second, defaultPing} {
		for off := time.Duration(0); off < restEvery; off += 10 * time.Millisecond {
			r := newRig(t)
			r.ep.PingTimeout = limit
			c := r.client()
			c.gets(1, 3)
			b := r.backend(0)
			if b.send(1, false, ":status=200"); off%20 == 0 { // else one waits for its answer
				b.send(3, false, ":status=200")
			}
			pace := func(after time.Duration) { // what a driver does
				r.e.Tick(after + r.e.Pace())
				r.run()
			}
			for r.e.now < 2*restAfter {
				pace(r.e.now)
				pong(b)
			}
			ticked := r.e.now
			r.e.Advance(ticked + off%r.e.Pace()) // the request comes between two ticks
			c.get(5)
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

// Tomcat ends a connection when the count of PINGs exceeds a hundred: each counts ten, each frame of a request takes
// twenty off. So backends are asked rarely, and never again once they took offence.
func TestSignsOfLife(t *testing.T) {
	for _, tt := range []struct {
		name          string
		answered      bool // it is a watch; else a slow request
		after         time.Duration
		code          string // of a GOAWAY; "-" ends the connection without one
		times         int    // connections that take offence
		pings, before int    // on the last connection, and on each before
	}{
		{name: "a quiet watch", answered: true, after: 95 * time.Second, pings: 3},
		{name: "a slow answer", after: 20 * time.Second, pings: 3},
		{name: "calm", answered: true, after: 2 * time.Minute, code: "ENHANCE_YOUR_CALM", times: 1, before: 1},
		{name: "another end", answered: true, after: 40 * time.Second, code: "NO_ERROR", times: 4, before: 1, pings: 1},
		{name: "ends without a word", after: 10 * time.Second, code: "-", times: 3, before: 1},
	} {
		r, c := newClient(t)
		for i := range tt.times + 1 {
			c.get(uint32(2*i + 1))
			b := r.backends[len(r.backends)-1]
			if tt.answered {
				b.send(1, false, ":status=200")
			}
			pings, want, ends := 0, tt.pings, i < tt.times
			for end := r.e.now + tt.after; r.e.now < end && !b.c.closing && !b.c.drained; {
				r.tick(TickEvery)
				if !slices.ContainsFunc(b.see(), func(f string) bool { return strings.HasPrefix(f, "PING") }) {
					continue
				}
				switch pings++; {
				case !ends:
					b.pong()
				case tt.code == "-":
					r.e.Ended(b.c, errors.New("closed"))
					r.run()
				default:
					b.say("GOAWAY 1 %s", tt.code)
				}
			}
			if ends {
				want = tt.before
			}
			check.Same(t, want, pings, "%s: PINGs on connection %d", tt.name, i+1)
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
