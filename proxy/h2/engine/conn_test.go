package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A client that takes some of its output now and then is waited for, and one that takes nothing,
// but not one whose kernel is silent, too.
func TestTakesLittleThenNothing(t *testing.T) {
	r, c := newClient(t)
	c.silent = true
	c.get(1)
	r.backend(0).say("HEADERS 1 :status=200 | DATA 1 x END")
	c.c.take() // the driver's write does not return
	taken, silence := uint64(0), time.Duration(0)
	r.e.Taken = func(*Conn) (uint64, bool, time.Duration) { return taken, false, silence }
	for range 2 * int(stallTime/time.Second) {
		taken++
		r.tick(time.Second)
	}
	r.tick(stallTime - time.Second)
	silence = goneTime + 1
	check.Same(t, false, c.c.closing, "closed too early")
	r.tick(2 * time.Second)
	check.Same(t, true, c.shut, "closed after so long without its kernel")
	r.clean()
}

// A process that was suspended must not take its own pause for its peers' silence.
func TestStallIsNotSilence(t *testing.T) {
	r, c, b := asked(t)
	turn := func(step time.Duration) {
		now := r.e.now + step
		r.e.Overslept(now, 0)
		r.e.Tick(now)
		r.run()
	}
	for range 8 {
		turn(TickEvery)
	}
	turn(time.Hour)
	check.Same(t, false, b.c.closing || c.c.closing || b.c.cut || c.c.cut, "closed because this process did not run")
	for range int(defaultPing/TickEvery) + 2 { // the PING that was due is sent, and not answered
		turn(TickEvery)
	}
	check.Same(t, true, b.c.cut, "a backend that is silent while this process runs is closed")
}

// While its machine was suspended, a backend's idle connection was idle, and one with a request was not.
func TestIdleWhileSuspended(t *testing.T) {
	r, c, b := asked(t)
	turn := func() bool { r.e.Overslept(r.e.now, backendIdle); r.tick(TickEvery); return b.c.closing }
	check.Same(t, false, turn(), "closed with a request")
	b.say("HEADERS 1 :status=200 END")
	check.Same(t, [2]bool{true, false}, [2]bool{turn(), c.c.closing}, "closed without: the backend's, and the client's")
}

// A peer with unread input in our socket is not silent: we are late.
func TestLateReadingIsNotSilence(t *testing.T) {
	r := newRig(t)
	waiting := true
	r.e.Unread = func(*Conn) bool { return waiting }
	c := r.client()
	c.get(1)
	b := r.backend(0)
	r.tick(3 * time.Minute)
	check.Same(t, false, b.c.cut || c.c.cut, "closed because this process was late")
	waiting = false
	r.tick(TickEvery)
	check.Same(t, [2]bool{true, false}, [2]bool{b.c.cut, c.c.cut}, "closed: the connection of the silent backend, and the client's")
}

// A server that is not ready sends GOAWAY to a few clients at a time, because it holds its mutex.
func TestSentAwayAFewAtATime(t *testing.T) {
	r := newRig(t)
	for range sentAwayAtOnce + 1 {
		r.client().get(1)
	}
	check.Same(t, [2]bool{true, false}, [2]bool{r.e.SendAway(), r.e.SendAway()}, "more to do after %d, and after all", sentAwayAtOnce)
}

// A connection with nothing left to do is not cut while its client takes output that the socket has
// accepted long ago, but 1 s after the rest was sent, or 30 s after the client has last taken some.
// One that is closed for an error is cut after 1 s.
func TestClosedSlowly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		wrong bool          // the client breaks the protocol
		takes time.Duration // how long it takes a byte each second
		rest  bool          // and then not all
		want  time.Duration // until the cut
	}{
		{name: "has all", want: lingerTime},
		{name: "takes some every second", takes: time.Minute, want: time.Minute + lingerTime},
		{name: "takes some, then nothing", takes: time.Minute, rest: true, want: time.Minute + stallTime},
		{name: "breaks the protocol", wrong: true, takes: time.Minute, want: lingerTime},
	} {
		r, c := newClient(t)
		var closed time.Duration
		r.e.Taken = func(*Conn) (uint64, bool, time.Duration) {
			since := r.e.now - closed
			return uint64(min(since, tt.takes) / time.Second), since >= tt.takes && !tt.rest, 0
		}
		c.get(1)
		r.e.Drain(time.Hour)
		c.say("PING farewell ACK")
		if tt.wrong {
			c.send(2, true) // an even stream
		} else {
			r.backend(0).say("HEADERS 1 :status=200 | DATA 1 done END")
		}
		for closed = r.e.now; !c.c.cut && r.e.now < time.Hour; {
			r.tick(TickEvery)
		}
		check.Same(t, true, c.c.closing, "a client that %s: closing", tt.name)
		check.Within(t, tt.want, tt.want+2*TickEvery, r.e.now-closed, "a client that %s: time until it is cut", tt.name)
	}
}

// When a replica stops, all its clients reconnect to another one at once, with all their watches. That must not become
// hundreds of handshakes: a busy backend would close some of the connections, each with a hundred watches. A backend
// with few streams per connection still gets as many connections as it needs.
func TestCrowd(t *testing.T) {
	for _, tt := range []struct{ clients, perConn, most int }{
		// Some dials are in progress before the first backend sends its limit of streams, and one replaces the first.
		{20, 1000, maxDialing + 1},
		{4, 10, 4 * 250 / 10},
	} {
		const each = 250
		r := newRig(t)
		r.heldDial = true
		for range tt.clients {
			r.client().gets(1, 2*each-1)
		}
		check.Same(t, maxDialing, len(r.held), "dials at once")
		dials, sent := 0, 0
		for ; len(r.held) > 0; dials++ {
			check.Within(t, 1, maxDialing, len(r.held), "dials at once")
			r.dialEnds(nil).say("SETTINGS MAX_CONCURRENT_STREAMS=%d", uint32(tt.perConn))
		}
		for _, b := range r.backends {
			sent += len(b.c.streams)
		}
		check.Same(t, tt.clients*each, sent, "requests that were sent")
		check.Within(t, 0, tt.most, dials, "dials, where %d streams each suffice", tt.perConn)
	}
}

func (s *spares) empty() bool {
	return len(s.streams)+len(s.chunks)+len(s.sendings) == 0
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
			check.Within(t, 0, max(limit, limit*9/10+TickEvery), r.e.now-last, "PingTimeout %v: time until it is closed", limit)
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
				if pings++; !ends {
					b.pong()
					continue
				}
				if tt.code != "-" {
					b.say("GOAWAY 1 %s", tt.code)
				}
				r.ends(b)
			}
			if ends {
				want = tt.before
			}
			check.Same(t, want, pings, "%s: PINGs on connection %d", tt.name, i+1)
		}
	}
}

func (r *rig) ends(p *peer) {
	r.e.Ended(p.c, errors.New("closed"))
	r.run()
}

// A server that hangs and is then killed ends all its connections soon after PINGs: it has taken no offence.
func TestKilledServerTookNoOffence(t *testing.T) {
	r, c := newClient(t)
	for i := range tooOften + 1 {
		c.get(uint32(2*i + 1))
		r.backend(i).say("SETTINGS MAX_CONCURRENT_STREAMS=1")
	}
	r.tick(1250 * time.Millisecond)
	for _, b := range r.backends {
		check.Same(t, true, b.c.askedAt > 0, "asked before its end")
		r.ends(b)
	}
	c.get(2*tooOften + 3)
	last := r.backend(tooOften + 1)
	r.tick(1250 * time.Millisecond)
	check.Same(t, true, slices.ContainsFunc(last.see(), func(f string) bool { return strings.HasPrefix(f, "PING") }), "asked after the restart")
}

// One that crashes now and then may do so soon after a PING. That is chance.
func TestRareEndsAreNoOffence(t *testing.T) {
	r, c := newClient(t)
	for i := range tooOften + 1 {
		c.get(uint32(2*i + 1))
		b := r.backends[len(r.backends)-1]
		r.tick(1250 * time.Millisecond)
		check.Same(t, true, b.c.askedAt > 0, "asked before end %d", i+1)
		r.ends(b)
		b.c.pool.ep.offendedAt.Add(-int64(2 * time.Hour))
	}
}

func pong(peers ...*peer) {
	for _, p := range peers {
		if slices.ContainsFunc(p.see(), func(f string) bool { return strings.HasPrefix(f, "PING") }) {
			p.pong()
		}
	}
}
