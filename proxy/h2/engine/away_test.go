package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A server that is not ready sends GOAWAY to its clients, except to those without a request so far.
// It handles a few at a time, because it holds its mutex.
func TestSendAway(t *testing.T) {
	r := newRig(t)
	idle, busy, fresh := r.client(), r.client(), r.client()
	r.tick(2 * r.e.lim.linger)
	idle.get(1)
	r.backend(0).respond(1, "done")
	busy.get(1)
	idle.see()
	away := []string{fmt.Sprintf("GOAWAY %d NO_ERROR", topStreamID), "PING " + drainPing}
	send := func() {
		if r.e.SendAway() {
			t.Error("SendAway has more to do, with three clients")
		}
		r.run()
		r.tick(TickEvery) // clients have longer to answer the PING
	}
	send()
	idle.want(away...)
	busy.want(away...)
	if got := fresh.see(); slices.Contains(got, away[0]) {
		t.Errorf("a client without a request so far sees %v", got)
	}
	for _, c := range []*peer{idle, busy} {
		c.drainPong()
	}
	if !idle.c.closing || busy.c.closing {
		t.Errorf("idle closed: %v, busy closed: %v", idle.c.closing, busy.c.closing)
	}
	fresh.get(1)
	send()
	fresh.want(away...)
	r.backend(0).respond(3, "done")
	r.backend(0).respond(5, "done")
	busy.wantClosed(true, "a client that was asked to go is kept after its request")
	for range sentAwayAtOnce {
		r.client().get(1)
	}
	r.client().get(1)
	if !r.e.SendAway() || r.e.SendAway() {
		t.Errorf("want %d at a time", sentAwayAtOnce)
	}
}

// A connection with nothing left to do is not cut while its client takes output that the socket has
// accepted long ago, but 1 s after the rest was sent, or 30 s after the client has last taken some.
// One that is closed for an error is cut after 1 s.
func TestClosedSlowly(t *testing.T) {
	lim := defaultLimits()
	for _, tt := range []struct {
		name  string
		wrong bool          // the client breaks the protocol
		takes time.Duration // how long it takes a byte each second
		rest  bool          // and then not all
		want  time.Duration // until the cut
	}{
		{name: "has all", want: lim.linger},
		{name: "takes some every second", takes: time.Minute, want: time.Minute + lim.linger},
		{name: "takes some, then nothing", takes: time.Minute, rest: true, want: time.Minute + lim.stall},
		{name: "breaks the protocol", wrong: true, takes: time.Minute, want: lim.linger},
	} {
		r, c := newClient(t)
		var closed time.Duration
		r.e.Taken = func(*Conn) (uint64, bool) {
			since := r.e.now - closed
			return uint64(min(since, tt.takes) / time.Second), since >= tt.takes && !tt.rest
		}
		c.get(1)
		r.e.Drain(time.Hour)
		c.drainPong()
		if tt.wrong {
			c.send(2, true) // an even stream
		} else {
			r.backend(0).respond(1, "done")
		}
		for closed = r.e.now; !c.c.cut && r.e.now < time.Hour; {
			r.tick(TickEvery)
		}
		if took := r.e.now - closed; !c.c.closing || took < tt.want || took > tt.want+2*TickEvery {
			t.Errorf("a client that %s: cut after %v, want %v", tt.name, took, tt.want)
		}
	}
}

// On a connection that was sent GOAWAY, a request that cannot be sent to a backend is refused, so
// that its client repeats it elsewhere. After some seconds the client gets the error instead.
func TestSendAwayRefuses(t *testing.T) {
	r := newRig(t)
	r.plan.Wait = time.Minute
	c := r.client()
	c.get(1)
	r.backend(0).respond(1, "done")
	r.refuse = errors.New("refused")
	r.e.lose(r.backend(0).c, errors.New("gone"))
	r.run()
	c.see()
	c.get(3)
	r.tick(TickEvery)
	c.want()
	r.e.SendAway()
	r.run()
	c.want(fmt.Sprintf("GOAWAY %d NO_ERROR", topStreamID), "PING "+drainPing)
	r.tick(TickEvery)
	c.want("RST 3 REFUSED_STREAM")
	for range awayRefuses / TickEvery {
		r.tick(TickEvery)
		r.e.SendAway()
	}
	fresh := r.client()
	fresh.get(1)
	r.e.SendAway()
	r.tick(TickEvery)
	if got := strings.Join(fresh.see(), "|"); strings.Contains(got, "REFUSED_STREAM") {
		t.Errorf("refused for longer than %s: %s", awayRefuses, got)
	}
	r.tick(2 * awayGap) // then the next period of SendAway begins
	late := r.client()
	late.get(1)
	r.e.SendAway()
	r.tick(TickEvery)
	late.wantPart("REFUSED_STREAM")
}
