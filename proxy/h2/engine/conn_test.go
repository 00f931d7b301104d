package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

func (r *rig) eject(ep *Endpoint) {
	r.e.Eject(ep)
	r.run()
}

func (r *rig) retire(ep *Endpoint, grace time.Duration) {
	r.e.Retire(ep, grace)
	r.run()
}

func (r *rig) drain(grace time.Duration) {
	r.e.Drain(grace)
	r.run()
}

// ended checks the reason of the i-th outcome.
func (r *rig) ended(i int, want Reason) {
	r.t.Helper()
	if o := r.outcomes[i]; o.Reason != want {
		r.t.Errorf("outcome %+v, want %v", o, want)
	}
}

// drainPong answers the PING that follows a GOAWAY.
func (p *peer) drainPong() {
	_ = p.fr.WritePing(true, [8]byte([]byte(drainPing)))
	p.flush()
}

// wantClosed checks whether the connection is closed, and otherwise reports wrong.
func (p *peer) wantClosed(closed bool, wrong string) {
	p.r.t.Helper()
	if p.c.closing != closed {
		p.r.t.Error(wrong)
	}
}

func TestStreamIDsRunOut(t *testing.T) {
	r, c := newClient(t, func(l *limits) { l.maxStreamID = 7 })
	c.gets(1, 7)
	r.backend(0).see()
	if len(r.backends) != 1 || len(r.backends[0].c.streams) != 4 {
		t.Errorf("%d connections", len(r.backends))
	}
	c.want(fmt.Sprintf("GOAWAY %d NO_ERROR", topStreamID), "PING "+drainPing)
	c.get(9) // crossed the GOAWAY
	r.backend(1)
	c.drainPong()
	c.want("GOAWAY 9 NO_ERROR")
	c.get(11) // after the GOAWAY
	check.Same(t, 5, len(r.e.conns[0].streams), "streams")
	for id := uint32(1); id <= 7; id += 2 {
		r.backends[0].respond(id, "")
	}
	r.backends[0].wantClosed(true, "a backend connection without ids is kept")
	r.backends[1].respond(1, "")
	c.wantClosed(true, "the client's connection is kept")
	r.clean()
}

// A silent backend is detected in time; a throttled one has the longest time to answer a PING
// (design §4).
func TestSilentBackendIsFoundInTime(t *testing.T) {
	r, c, b := asked(t)
	b.see()
	r.tick(1250 * time.Millisecond)
	b.want("PING fairlead")
	r.tick(3 * time.Second)
	b.wantClosed(false, "given up after 3 s")
	b.pong()
	r.tick(3 * time.Second)
	b.want("PING fairlead")
	r.tick(2 * time.Second)
	if !b.c.closing || r.failed != 1 {
		t.Errorf("after 5 s: closed: %v, %d signals", b.c.closing, r.failed)
	}
	c.want("HEADERS 1 :status=503 content-length=0 END")
	r.ended(0, ReasonLost)
	r.clean()
}

func TestClientTimeouts(t *testing.T) {
	gone := func(r *rig, p *peer, after time.Duration) {
		t.Helper()
		r.tick(after - time.Second)
		p.wantClosed(false, "closed too early")
		r.tick(3 * time.Second)
		p.wantClosed(true, "not closed")
		r.tick(time.Second)
		if !p.shut {
			t.Error("kept open as long as its peer likes")
		}
		r.clean()
	}
	t.Run("no preface", func(_ *testing.T) {
		r := newRig(t)
		gone(r, r.peer(r.e.AcceptClient()), r.e.lim.head)
	})
	t.Run("slow head", func(_ *testing.T) {
		r, c := newClient(t)
		_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
		c.flush()
		gone(r, c, r.e.lim.head)
	})
	t.Run("idle", func(_ *testing.T) {
		r := newRig(t)
		r.tick(r.e.lim.idle) // before the connection
		gone(r, r.client(), r.e.lim.idle)
	})
	t.Run("dead with a watch", func(_ *testing.T) {
		r, c, b := asked(t)
		b.begin(1)
		r.alive(b, 30*time.Second)
		c.silent = true
		r.alive(b, 20*time.Second)
		c.wantClosed(true, "not closed")
		b.wantPart("RST 1 CANCEL")
		r.clean()
	})
	t.Run("takes little, then nothing", func(_ *testing.T) {
		r, c := newClient(t)
		c.silent = true
		c.get(1)
		r.backend(0).respond(1, "x")
		c.c.take() // the driver's write does not return
		taken := uint64(0)
		r.e.Taken = func(*Conn) (uint64, bool) { return taken, false }
		for range 2 * int(r.e.lim.stall/time.Second) {
			taken++
			r.tick(time.Second)
			c.pong()
		}
		gone(r, c, r.e.lim.stall)
	})
}

func TestDrain(t *testing.T) {
	r := newRig(t)
	c, idle := r.client(), r.client()
	c.get(1)
	r.plan.LongRunning = true
	c.get(3)
	b := r.backend(0)
	b.begin(3)
	c.see()
	r.drain(5 * time.Second)
	c.want(fmt.Sprintf("GOAWAY %d NO_ERROR", topStreamID), "PING "+drainPing)
	r.tick(2 * time.Second) // no answer to the PING
	c.want("GOAWAY 3 NO_ERROR")
	if !idle.c.closing || c.c.closing {
		t.Errorf("idle closed: %v, busy closed: %v", idle.c.closing, c.c.closing)
	}
	b.respond(1, "done")
	c.want("HEADERS 1 :status=200", `DATA 1 "done" END`)
	r.alive(b, 5*time.Second)
	c.want(`DATA 3 "" END`) // a watch ends as if it had timed out
	if !c.c.closing || r.outcomes[1].Reason != ReasonDrain {
		t.Errorf("closed: %v, outcomes %+v", c.c.closing, r.outcomes)
	}
	r.clean()
}

// An endpoint is first retired with a long grace, so that it gets no new requests and finishes
// those it has; later its watches are ended. Retiring it with a long grace once more does not undo
// that end.
func TestRetire(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Second} {
		r, c := newClient(t)
		c.get(1)
		r.plan.LongRunning = true
		c.get(3)
		b := r.backend(0)
		b.begin(3)
		c.see()
		old := r.ep
		r.ep = r.endpoint("new")
		r.retire(old, time.Hour)
		c.get(5)
		r.backend(1).respond(1, "new")
		c.want("HEADERS 5 :status=200", `DATA 5 "new" END`)
		b.respond(1, "done")
		c.want("HEADERS 1 :status=200", `DATA 1 "done" END`)
		r.tick(3 * time.Second)
		c.want()
		r.e.Retire(old, grace)
		r.e.Retire(old, time.Hour)
		r.tick(grace * 9 / 10)
		c.want()
		r.tick(grace/10 + TickEvery)
		c.want(`DATA 3 "" END`)
		b.wantClosed(true, "the retired connection is kept")
		r.clean()
	}
}

func TestStreamsOfLostClientEndAtBackend(t *testing.T) {
	r, c := newClient(t)
	c.request(1, "POST", false)
	c.get(3)
	b := r.backend(0)
	b.see()
	r.lose(c, nil)
	b.want("RST 1 CANCEL", "RST 3 CANCEL")
	if len(r.outcomes) != 2 || r.outcomes[0].Reason != ReasonClientLost {
		t.Errorf("outcomes %+v", r.outcomes)
	}
	r.e.remove(c.c)
	r.clean()
}

func TestDeadline(t *testing.T) {
	r := newRig(t)
	r.plan.Deadline = time.Second
	c := r.client()
	c.get(1)
	c.get(3)
	b := r.backend(0)
	b.see()
	b.begin(3)
	c.see()
	r.tick(2 * time.Second)
	b.want("PING fairlead", "RST 1 CANCEL", "RST 3 CANCEL")
	c.want("HEADERS 1 :status=504 content-length=0 END", "RST 3 INTERNAL_ERROR")
	r.clean()

	r.plan.Fail = nil
	r.heldDial = true
	r.ep = r.endpoint("other")
	c.get(5) // no connection in time
	r.tick(2 * time.Second)
	c.want("HEADERS 5 :status=504 content-length=0 END")
	r.dialFailedAll(errors.New("late"))
	r.clean()
}

func (r *rig) dialFailedAll(err error) {
	for _, p := range r.held {
		p.dialled(err)
	}
	r.held = nil
	r.run()
}

// A process that was suspended must not take its own pause for its peers' silence.
func TestStallIsNotSilence(t *testing.T) {
	r, c, b := asked(t)
	turn := func(step time.Duration) {
		now := r.e.now + step
		r.e.Overslept(now)
		r.e.Tick(now)
		r.run()
	}
	for range 8 {
		turn(TickEvery)
	}
	turn(time.Hour)
	if b.c.closing || c.c.closing || b.c.cut || c.c.cut {
		t.Fatal("connections were closed because this process did not run")
	}
	for range int(defaultPing/TickEvery) + 2 { // the PING that was due is sent, and not answered
		turn(TickEvery)
	}
	if !b.c.cut {
		t.Error("a backend that is silent while this process runs was not closed")
	}
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
	if b.c.cut || c.c.cut {
		t.Fatal("connections were closed because this process was late")
	}
	waiting = false
	r.tick(TickEvery)
	if !b.c.cut || !c.c.cut {
		t.Error("connections of silent peers were not closed")
	}
}

// A client whose window is used up still gets what has come of a watch that a drain has ended, if
// it is not too slow, and the whole of a log that its backend has ended before.
func TestDrainDeliversWhatHasCome(t *testing.T) {
	for _, tc := range []struct {
		name  string
		whole bool
		after time.Duration
		want  string
	}{
		{"an ended watch", false, 2 * TickEvery, `DATA 1 "ent\n" END`},
		{"an ended watch that is not read", false, eventPatience + 2*TickEvery, "RST 1 CANCEL"},
		{"a whole log", true, time.Minute / 4, `DATA 1 "ent\n" END`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, c := newClient(t)
			c.window(2)
			r.plan.LongRunning = true
			c.get(1)
			b := r.backend(0)
			b.begin(1)
			b.data(1, "event\n", tc.whole)
			c.wantPart(`DATA 1 "ev"`)
			r.drain(0)
			c.see()
			r.tick(tc.after)
			c.window(100)
			if got := strings.Join(c.see(), "|"); !strings.Contains(got, tc.want) {
				t.Errorf("sees %s, want %s", got, tc.want)
			}
			r.clean()
		})
	}
}

// A drain ends a watch between two events, if possible.
func TestDrainEndsBetweenEvents(t *testing.T) {
	begin := func(t *testing.T) (*rig, *peer, *peer) {
		r, c := newClient(t)
		r.plan.LongRunning = true
		c.get(1)
		b := r.backend(0)
		b.headers(1, false, ":status=200")
		b.data(1, "{half of an", false)
		c.see()
		r.drain(0)
		r.tick(eventGap / 2)
		if got := strings.Join(c.see(), "|"); strings.Contains(got, "END") {
			t.Fatalf("the watch ended in the middle of an event: %s", got)
		}
		return r, c, b
	}
	t.Run("whole", func(t *testing.T) {
		r, c, b := begin(t)
		b.data(1, " event}\n", false)
		c.see()
		r.tick(TickEvery)
		c.want(`DATA 1 "" END`)
	})
	t.Run("silent", func(t *testing.T) {
		r, c, _ := begin(t)
		r.tick(TickEvery)
		r.tick(TickEvery)
		c.want(`DATA 1 "" END`)
	})
	t.Run("never whole", func(t *testing.T) {
		r, c, b := begin(t)
		for range 3 * (eventPatience/eventGap + 1) {
			if b.c.streams[1] == nil {
				break
			}
			b.data(1, "more", false)
			r.tick(eventGap / 2)
		}
		c.wantPart("END")
	})
}
