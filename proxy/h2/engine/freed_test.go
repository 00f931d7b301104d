package engine

import (
	"testing"
	"time"
)

// An object that is kept for reuse cannot be freed twice: two connections would share it.
func TestFreedTwice(t *testing.T) {
	for _, tt := range []struct {
		name string
		free func(r *rig) func()
	}{
		{"a chunk", func(r *rig) func() { c := r.e.chunk(); return func() { r.e.freeChunk(c) } }},
		{"a buffer", func(r *rig) func() { b := r.e.buffer(); return func() { r.e.buffers.Put(b) } }},
		{"a stream", func(r *rig) func() {
			c := r.client()
			s := r.e.newStream(c.c, 1)
			r.e.unlinkLeg(s, up)
			return func() { r.e.endIfDone(s) }
		}},
		{"what is needed to send a request", func(r *rig) func() {
			var s stream
			to := r.e.newSending(&Plan{})
			return func() { s.sending = to; r.e.freeSending(&s) }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			free := tt.free(newRig(t))
			free()
			defer func() {
				if recover() == nil {
					t.Error("no panic although it was freed twice")
				}
			}()
			free()
		})
	}
}

// After a crowd only a limited number of streams is kept for reuse.
func TestFewStreamsAreKept(t *testing.T) {
	r, c := newClient(t)
	var crowd []*stream
	for id := range uint32(maxFreeStreams + 10) {
		s := r.e.newStream(c.c, 2*id+1)
		r.e.unlinkLeg(s, up)
		crowd = append(crowd, s)
	}
	kept := 0
	for _, s := range crowd {
		r.e.endIfDone(s)
	}
	for s := r.e.streams; s != nil; s = s.free {
		kept++
	}
	if kept != maxFreeStreams || r.e.freeStreams != kept {
		t.Errorf("%d streams are kept and %d counted, want %d", kept, r.e.freeStreams, maxFreeStreams)
	}
}

// A request that comes just after the PING of an idle connection has as much time as others before
// the connection is closed.
func TestIdleBackendHasTimeToAnswerPing(t *testing.T) {
	r, c, b := asked(t)
	b.see()
	b.respond(1, "")
	for range 20 { // until the PING
		r.tick(TickEvery)
		if b.c.pingAt > 0 {
			break
		}
	}
	b.want("PING fairlead")
	c.get(3)
	r.tick(3 * time.Second)
	b.wantClosed(false, "given up after 3 s")
	r.tick(time.Second)
	b.wantClosed(true, "a silent backend is not found within 5 s of the request")
	r.clean()
}

// A worn-out connection is replaced for the requests that wait for it.
func TestWornOutIsReplaced(t *testing.T) {
	r, c, b := asked(t, func(l *limits) { l.backlogLimit = 1 })
	b.silent = true
	c.gets(3, 5)
	if len(r.backends) != 1 {
		t.Fatal("a second connection")
	}
	b.c.bytesOut = r.e.lim.keyBytes
	r.tick(TickEvery)
	r.backend(1).respond(1, "replaced")
	c.want("HEADERS 5 :status=200", `DATA 5 "replaced" END`)
}

// Keys are not used beyond their limits (RFC 8446 §5.5): a connection takes no new requests,
// finishes those it has, and ends its watches.
func TestKeysWearOut(t *testing.T) {
	for _, tt := range []struct {
		name string
		side dir
	}{{"of a client", up}, {"of a backend", down}} {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newClient(t)
			r.plan.LongRunning = true
			c.get(1)
			r.plan.LongRunning = false
			c.get(3)
			b := r.backend(0)
			b.begin(1)
			p := map[dir]*peer{up: c, down: b}[tt.side]
			p.c.bytesIn = r.e.lim.keyBytes
			alive := func(d time.Duration) {
				for end := r.e.now + d; r.e.now < end; {
					r.tick(time.Second)
					c.pong()
					b.pong()
				}
			}
			alive(2 * time.Second)
			if tt.side == up && c.c.goAway == goAwayNone || tt.side == down && !b.c.drained {
				t.Fatal("the connection is still used")
			}
			b.respond(3, "under way")
			if len(r.outcomes) != 1 || r.outcomes[0].Reason != ReasonNone {
				t.Errorf("the request in progress ended with %+v", r.outcomes)
			}
			if tt.side == down {
				c.get(5)
				if len(r.backends) != 2 {
					t.Fatal("a new request used the old connection")
				}
				r.backend(1).respond(1, "elsewhere")
			}
			alive(r.e.lim.keyGrace)
			p.wantClosed(true, "it is still open")
			if last := r.outcomes[len(r.outcomes)-1]; last.Reason != ReasonRetired {
				t.Errorf("the watch ended with %+v", last)
			}
			r.clean()
		})
	}
}
