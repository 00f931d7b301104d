package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

var errRefused = errors.New("connection refused")

// takes sends the backend's limit of streams for the connection.
func (p *peer) takes(n uint32) {
	_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: n})
	p.flush()
}

// occupied returns a connection whose only stream is taken by a request, long-running or not.
// Further dials fail.
func occupied(r *rig, long bool) (c, b *peer) {
	r.plan.LongRunning = long
	c = r.client()
	c.get(1)
	b = r.backend(0)
	b.takes(1)
	b.see()
	r.plan.LongRunning = false
	r.refuse = errRefused
	return c, b
}

// alive advances the clock for a backend that answers PINGs.
func (r *rig) alive(b *peer, d time.Duration) {
	for ; d > 0; d -= time.Second {
		r.tick(time.Second)
		b.pong()
	}
}

// A connection that will not take a request soon does not count when a dial fails: the waiting
// requests are answered, or move to another endpoint.
func TestDialFailsBesideUselessConnection(t *testing.T) {
	for name, useless := range map[string]func(b *peer){
		"drained":         func(b *peer) { b.goAway(1, http2.ErrCodeNo) },
		"full of watches": func(*peer) {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c, b := occupied(r, true)
			useless(b)
			c.see()
			c.get(3)
			c.want("HEADERS 3 :status=503 content-length=0 END")
			if o := r.outcomes[0]; o.Reason != ReasonDial || !errors.Is(o.Err, errRefused) {
				t.Errorf("outcome %+v", o)
			}

			r.plan.Retries, r.plan.Wait = 2, 2*time.Second
			c.get(5)
			r.tick(time.Second)
			c.want()
			r.refuse = nil // it is back
			r.tick(time.Second)
			r.backend(1).respond(1, "")
			c.want("HEADERS 5 :status=200 END")
		})
	}
}

// A connection that is merely full takes a waiting request when another one ends. Meanwhile dials
// are repeated now and then, and a request that may use another endpoint moves there.
func TestDialFailsBesideFullConnection(t *testing.T) {
	r := newRig(t)
	c, b := occupied(r, false)
	c.get(3)
	if r.failed != 1 {
		t.Fatalf("%d dials have failed", r.failed)
	}
	r.alive(b, 5*time.Second)
	c.want()
	if r.failed < 5 || r.failed > 10 {
		t.Errorf("%d dials in five seconds", r.failed)
	}
	b.respond(1, "")
	b.see()
	b.respond(3, "")
	c.want("HEADERS 1 :status=200 END", "HEADERS 3 :status=200 END")
	r.clean()

	r.alive(b, 2*time.Second)
	other := r.endpoint("other")
	c.get(5) // the connection is full again
	r.heldDial = true
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(r.ep, other), true }
	c.get(7)
	r.dialEnds(errRefused)
	if len(r.held) != 1 || r.held[0].ep != other || r.inFlight != 2 {
		t.Fatal("the other endpoint is not dialled")
	}
}

// A request that waits for a free stream is answered in time, with the cause.
func TestNoRoomInTime(t *testing.T) {
	for name, tt := range map[string]struct{ deadline, late time.Duration }{
		"without a deadline":   {0, 30 * time.Second},
		"with a deadline":      {10 * time.Second, 10 * time.Second},
		"with a long deadline": {time.Minute, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c, b := occupied(r, false)
			c.see()
			r.plan.Deadline = tt.deadline
			c.get(3)
			r.alive(b, tt.late-time.Second)
			c.see()
			if len(r.outcomes) > 0 {
				t.Fatalf("outcome %+v too early", r.outcomes[0])
			}
			r.alive(b, 2*time.Second)
			if got := c.see(); !slices.Contains(got, "HEADERS 3 :status=503 content-length=0 END") {
				t.Fatalf("sees %q", got)
			}
			r.ended(0, ReasonBusy)
		})
	}
}

// Before its SETTINGS come, a connection gets one stream, or as many as the endpoint's other
// connections allow. Those that it refuses wait again, and use up no retry.
func TestRefusedBeforeSettings(t *testing.T) {
	r := newRig(t)
	r.plan.Retries = 0
	c := r.client()
	for id := uint32(1); id <= 15; id += 2 {
		c.request(id, "POST", true)
	}
	b := r.backends[0]
	if n := len(b.c.streams); n != 1 {
		t.Errorf("%d streams before SETTINGS", n)
	}
	r.heldDial = true
	b.to.Reset()
	b.takes(4)
	r.dialled(r.held[0])
	late := r.backends[1]
	late.to.Reset()
	if n := len(late.c.streams); n != 4 {
		t.Fatalf("%d streams on a second connection, want as many as the first has", n)
	}
	_ = late.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
	for _, id := range []uint32{5, 7} {
		_ = late.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)
	}
	late.flush()
	if len(r.outcomes) != 0 || len(late.c.streams) != 2 {
		t.Fatalf("outcomes %v, %d streams", r.outcomes, len(late.c.streams))
	}
	for _, id := range []uint32{1, 3, 5, 7} {
		b.respond(id, "")
	}
	for _, id := range []uint32{1, 3} {
		late.respond(id, "")
	}
	for _, id := range []uint32{9, 11} {
		b.respond(id, "")
	}
	if len(r.outcomes) != 8 {
		t.Fatalf("%d requests have ended", len(r.outcomes))
	}
	for _, o := range r.outcomes {
		if o.Status != 200 || o.Retries != 0 {
			t.Errorf("outcome %+v", o)
		}
	}
	r.clean()
}

// A request refused because of the limit of streams is sent again only with its whole body.
func TestRefusedWithItsBody(t *testing.T) {
	for _, tt := range []struct{ retries, size int }{{0, 1000}, {1, 1000}, {1, 400_000}} {
		r, c := newClient(t)
		r.plan.Retries = tt.retries
		c.get(1)
		b := r.backend(0)
		b.takes(2)
		_ = b.fr.WriteWindowUpdate(0, 1<<20)
		c.request(3, "POST", false)
		_ = b.fr.WriteWindowUpdate(3, 1<<20)
		b.flush()
		for left := tt.size; left > 0; left -= 1000 {
			c.data(3, strings.Repeat("x", 1000), false)
		}
		b.takes(1)
		b.rst(3, http2.ErrCodeRefusedStream)
		if got := strings.Join(c.see(), "|"); strings.Contains(got, ":status=503") != (tt.size > 1000) {
			t.Errorf("refused after %d bytes, the client sees %s", tt.size, got)
		}
		if tt.size > 1000 {
			continue
		}
		b.see()
		b.respond(1, "")
		c.data(3, "end", true)
		if got := strings.Join(r.backend(1).see(), "|"); !strings.Contains(got, `|DATA 1 (1000)|DATA 1 "end" END`) {
			t.Errorf("with %d retries, the backend sees %s", tt.retries, got)
		}
	}
}

// Requests at an ejected endpoint are moved only if they may be sent again. Otherwise they may
// still be answered.
func TestEjectKeepsWhatMayNotBeSentAgain(t *testing.T) {
	r := newRig(t)
	r.plan = Plan{Retries: 2, Again: true, Budget: func() bool { return false }}
	c := r.client()
	c.get(1)
	b := r.backend(0)
	r.eject(r.ep)
	b.respond(1, "")
	c.want("HEADERS 1 :status=200 END")
	r.clean()
}

// Lost is called at once, before the next Pick: the client's next request may already have arrived.
func TestLostIsToldAtOnce(t *testing.T) {
	r := newRig(t)
	lost := 0
	r.ep.Lost = func() { lost++ }
	c := r.client()
	c.get(1)
	r.e.lose(r.backend(0).c, errors.New("reset"))
	if lost != 1 || r.failed != 0 {
		t.Errorf("%d calls of Lost at once, and %d of Failed, which must wait for the mutex", lost, r.failed)
	}
	r.run()
}

// A failed dial fails no request while another dial is in progress.
func TestOneOfTwoDialsFails(t *testing.T) {
	r := newRig(t)
	r.heldDial = true
	c := r.client()
	for id := uint32(1); id < 2*(assumedStreams+2); id += 2 {
		c.get(id)
	}
	if len(r.held) != 2 {
		t.Fatalf("%d dials", len(r.held))
	}
	r.held[0].dialled(errRefused)
	r.run()
	c.want()
	r.dialled(r.held[1])
	r.backend(0).takes(2 * assumedStreams)
	if n := r.e.pools[poolKey{ep: r.ep}].waiting.n; n > 0 || len(r.outcomes) > 0 {
		t.Errorf("%d requests wait, %d have ended", n, len(r.outcomes))
	}
}

// The first write to a new connection contains a request.
func TestFirstWriteHasRequest(t *testing.T) {
	r, c := newClient(t)
	r.heldDial = true
	c.get(1)
	if b := r.held[0].dialled(nil); len(b.streams) != 1 {
		t.Errorf("%d requests are sent on a new connection", len(b.streams))
	}
}

// Requests with Plan.Apart have connections for themselves, which end with the others' endpoint.
func TestApart(t *testing.T) {
	r, c := newClient(t)
	r.plan.LongRunning = true
	c.get(1)
	r.backend(0).begin(1)
	r.plan.Apart = true
	c.gets(3, 5)
	b := r.backend(1)
	b.begin(1)
	if len(r.backends) != 2 || len(b.c.streams) != 2 {
		t.Fatalf("%d connections, %d requests on the second", len(r.backends), len(b.c.streams))
	}
	_ = b.fr.WriteRawFrame(http2.FrameHeaders, 0, 3, nil)
	b.flush()
	for range 257 { // a head without end
		_ = b.fr.WriteContinuation(3, false, nil)
	}
	b.flush()
	b.wantClosed(true, "a connection with an endless head is kept")
	c.wantPart("HEADERS 1 :status=200", "RST 3 INTERNAL_ERROR")
	r.backend(0).data(1, "event", false)
	c.want(`DATA 1 "event"`)

	c.get(7)
	r.backend(2).begin(1)
	r.retire(r.ep, time.Second)
	r.tick(2 * time.Second)
	for _, of := range []int{0, 2} {
		r.backends[of].wantClosed(true, "a retired connection is kept")
	}
	r.clean()

	r, c = newClient(t)
	r.plan.Apart, r.plan.Retries, r.plan.Again = true, 1, true
	second := r.endpoint("second")
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(r.ep, second), true }
	c.get(1)
	r.backend(0).see()
	r.eject(r.ep)
	r.backend(1).respond(1, "from the second")
	c.wantPart(`DATA 1 "from the second" END`)
	r.clean()
}

// Requests that wait for a connection to a retired endpoint wait for another, apart or not; idle
// connections to it end at once.
func TestRetiredWhileWaiting(t *testing.T) {
	r, c := newClient(t)
	r.heldDial = true
	c.get(1)
	r.plan.Apart = true
	c.get(3)
	r.retire(r.ep, time.Second)
	if len(r.held) != 4 {
		t.Fatalf("%d dials, want two for each request", len(r.held))
	}
	r.dialAll()
	r.backend(2).respond(1, "one")
	r.backend(3).respond(1, "three")
	c.wantPart(`DATA 1 "one" END`, `DATA 3 "three" END`)
	r.retire(r.ep, time.Second)
	for _, b := range r.backends {
		b.wantClosed(true, "an idle connection to a retired endpoint is kept")
	}
	r.clean()
}
