package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// Input has the same effect in single bytes, in any pieces of frames, and all at once.
func TestInputInAnyPieces(t *testing.T) {
	r, c := newClient(t)
	c.headers(1, false, ":method=POST", ":scheme=https", ":authority=a", ":path=/")
	for _, b := range []byte("hello") {
		_ = c.fr.WriteDataPadded(1, false, []byte{b}, make([]byte, 3))
	}
	_ = c.fr.WriteData(1, true, nil)
	all := c.to.Bytes()
	for i := range all {
		r.e.Feed(c.c, all[i:i+1])
		r.run()
	}
	r.backend(0).wantPart(`"h"`, `"e"`, `"l"`, `"o"`, "END")
}

// A request is sent again, with its whole body, if no backend has processed it, or if it may be
// processed twice. A backend that closes a connection before it has acknowledged our SETTINGS has
// not read the requests after them: so much is known of safe methods, also of a watch.
func TestTries(t *testing.T) {
	reset := func(_ *rig, b *peer) { b.say("RST 1 INTERNAL_ERROR") }
	refused := func(_ *rig, b *peer) { b.say("RST 1 REFUSED_STREAM") }
	lost := func(r *rig, b *peer) { r.lose(b, errRefused) }
	heard := func(r *rig, b *peer) {
		_ = b.fr.WriteSettingsAck()
		b.flush()
		r.lose(b, errRefused)
	}
	no := func() bool { return false }
	for _, tt := range []struct {
		name, method string
		plan         Plan // with Retries: 5, of which two are used
		body         int
		event        func(r *rig, b *peer)
		want         int
	}{
		{"reset, may be repeated", "POST", Plan{Again: true}, 0, reset, 3},
		{"reset", "POST", Plan{}, 0, reset, 1},
		{"lost, may be repeated", "POST", Plan{Again: true}, 0, heard, 2}, // once, alone
		{"lost", "POST", Plan{}, 0, lost, 1},
		{"lost GET", "GET", Plan{}, 0, lost, 3},
		{"lost HEAD", "HEAD", Plan{}, 0, lost, 3},
		{"lost OPTIONS", "OPTIONS", Plan{}, 0, lost, 1},
		{"lost DELETE", "DELETE", Plan{}, 0, lost, 1},
		{"lost watch", "GET", Plan{LongRunning: true}, 0, lost, 3},
		{"lost watch that may have been heard", "GET", Plan{LongRunning: true}, 0, heard, 1},
		{"no budget", "POST", Plan{Again: true, Budget: no}, 0, refused, 1},
		{"small body", "POST", Plan{}, 1000, refused, 3},
		{"large body", "POST", Plan{}, 400_000, refused, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.plan = tt.plan
			r.plan.Retries = 5
			second, third := r.endpoint("second"), r.endpoint("third")
			r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(r.ep, second, third), true }
			c := r.client()
			c.request(1, tt.method, tt.body == 0)
			for i := 0; i < len(r.backends); i++ {
				b := r.backend(i)
				b.say("WINDOW 0 %d", 1<<20)
				b.say("WINDOW 1 %d", 1<<20)
				for left := tt.body; left > 0 && i == 0; left -= 1000 {
					c.data(1, strings.Repeat("x", 1000), false)
				}
				check.Same(t, tt.body, b.received(), "try %d: bytes", i)
				tt.event(r, b)
			}
			c.wantPart(":status=50")
			c.say("RST 1 CANCEL")
			check.Same(t, tt.want, r.outcomes[0].Retries+1, "tries")
			r.clean()
		})
	}
}

// received returns the number of bytes of bodies that the peer sees.
func (p *peer) received() (sum int) {
	for _, f := range p.see() {
		n := 0
		if _, err := fmt.Sscanf(f, "DATA 1 (%d)", &n); err == nil {
			sum += n
		}
	}
	return sum
}

var errRefused = errors.New("connection refused")

// Failed is called at once, before the next Pick: the client's next request may already have arrived.
func TestLostIsToldAtOnce(t *testing.T) {
	r := newRig(t)
	c := r.client()
	c.get(1)
	r.e.lose(r.backend(0).c, errors.New("reset"))
	if r.failed != 1 {
		t.Errorf("%d calls of Failed at once, want 1", r.failed)
	}
	r.run()
}

// The rest of an answer that has ended can be read, and then its error.
func TestNoMoreOfAGuest(t *testing.T) {
	g := Guest{err: errRefused, rest: []byte("ab")}
	for _, want := range []string{"1 true <nil>", "1 false <nil>", "0 false connection refused"} {
		n, more, err := g.Read(make([]byte, 1))
		check.Same(t, want, fmt.Sprint(n, more, err), "read")
	}
	g.rest = []byte("ab")
	g.Leave(errRefused)
	if n, more, err := g.Read(make([]byte, 1)); n > 0 || more || !errors.Is(err, errRefused) {
		t.Errorf("read %d, %v, %v after Leave", n, more, err)
	}
}

// A caller that waits for room in a body learns that there is some, or that the rest of the body is not wanted.
func TestGuestWaitsForRoom(t *testing.T) {
	r, g := newRig(t), &Guest{}
	r.e.Invite(g, &wire.Head{Method: "POST", Authority: "a", Path: "/", ContentLength: -1}, r.forward(r.ep))
	r.run()
	b := r.backend(0)
	part := make([]byte, 16<<10)
	for _, frames := range []string{"WINDOW 0 100000 | WINDOW 1 100000", "HEADERS 1 :status=200 | DATA 1 no END | RST 1 NO_ERROR"} {
		for wait := false; !wait; r.run() {
			_, wait = g.Pass(part, nil)
		}
		for len(g.Room()) > 0 {
			<-g.Room()
		}
		b.say("%s", frames)
		check.Same(t, 1, len(g.Room()), "signals after %s", frames)
	}
	more, wait := g.Pass(part, nil)
	check.Same(t, "false false", fmt.Sprint(more, " ", wait), "more, wait")
	n, _, err := g.Read(part)
	check.Same(t, "no EOF", fmt.Sprint(string(part[:n]), " ", err), "the answer")
	r.run()
	r.clean()
}

// A backend's stream for a caller has ended with both bodies, and is not reset when they were read.
func TestGuestEndsItsStream(t *testing.T) {
	r, g := newRig(t), &Guest{}
	r.e.Invite(g, &wire.Head{Method: "GET", Authority: "a", Path: "/", EndStream: true}, r.forward(r.ep))
	r.run()
	b := r.backend(0)
	b.see()
	b.respond(1, "fine")
	check.Same(t, 0, len(b.c.streams), "streams of the backend")
	_, _, body, err := g.Take()
	check.Same(t, "fine <nil>", fmt.Sprint(string(body), " ", err), "the answer")
	r.run()
	b.want()
	r.clean()
}

// Peers may assume the default window until they have read our SETTINGS. With a smaller window, the
// data they send before that would be an error.
func TestWindowsAreNotBelowTheDefault(t *testing.T) {
	lim := New(Config{}).lim
	if streamWindow < defaultWindow || clientWindow < defaultWindow || lim.backendWindow < defaultWindow {
		t.Errorf("windows of %d, %d and %d bytes", streamWindow, clientWindow, lim.backendWindow)
	}
	r := newRig(t)
	c := r.peer(r.e.AcceptClient())
	c.to.WriteString(http2.ClientPreface)
	c.fr.WriteSettings()
	c.headers(1, false, ":method=POST", ":scheme=https", ":authority=a", ":path=/")
	for left := defaultWindow; left > 0; left -= minMaxFrame { // all sent before the peer reads our SETTINGS
		_ = c.fr.WriteData(1, left <= minMaxFrame, make([]byte, min(left, minMaxFrame)))
	}
	c.flush()
	c.wantClosed(false, "a client that uses the whole default window is cut off")
	r.backend(0).respond(1, "")
	r.clean()
}

// many returns n requests that the peer has not sent yet, the first ones of the connection.
func (p *peer) many(n int) []byte {
	for i := range n {
		p.headers(uint32(2*i+1), true, strings.Fields(okHead)...)
	}
	return p.bytes("")
}

// A turn under the mutex ends after a fixed number of requests, however much input there is.
func TestTurnHasSoManyHeads(t *testing.T) {
	r, c := newClient(t)
	b := c.many(200)
	for _, want := range []int{64, 128, 192, 200} {
		b = r.e.Feed(c.c, b)
		if n := len(c.c.streams); n != want {
			t.Fatalf("%d requests are in progress, want %d", n, want)
		}
	}
	if len(b) > 0 {
		t.Errorf("%d bytes are left", len(b))
	}
}

// Input that waits for another turn is counted once as input, and as held while it waits.
func TestTurnsCountInputOnce(t *testing.T) {
	r, c := newClient(t)
	c.c.bytesIn = 0
	b := c.many(200)
	held := func() int { return c.c.weight - c.c.heads - len(c.c.out) - 2*c.c.inflight }
	rest := r.e.Feed(c.c, b)
	check.Same(t, len(rest), held(), "bytes that wait")
	r.feed(c.c, rest)
	if n := held(); n != 0 || c.c.bytesIn != int64(len(b)) {
		t.Errorf("%d bytes were received; %d are counted, and %d as waiting", len(b), c.c.bytesIn, n)
	}
	lost := r.client()
	r.e.Feed(lost.c, b)
	r.e.lose(lost.c, errRefused)
	check.Same(t, 0, lost.c.weight, "bytes counted of a connection that has ended")
}

// A driver closes a connection once.
func TestEndedConnectionIsNotClosed(t *testing.T) {
	r := newRig(t)
	c := r.client()
	r.e.CutAll(errRefused)
	r.e.Ended(c.c, errRefused)
	r.e.Ended(c.c, errRefused)
	var w Work
	r.e.Collect(&w)
	check.Same(t, 0, len(w.Closes), "connections to be closed")
	check.Same(t, 0, r.e.Count.Conns[up].Load(), "connections counted")
}

// upload sends up to n bytes of a body, as far as the engine's windows allow.
func (p *peer) upload(id uint32, n int) {
	for n > 0 {
		s := p.c.streams[id]
		if s == nil {
			return
		}
		k := min(n, minMaxFrame, int(s.half[p.c.side].recv), int(p.c.recv))
		if k <= 0 {
			return
		}
		p.data(id, strings.Repeat("u", k), false)
		n -= k
	}
}
