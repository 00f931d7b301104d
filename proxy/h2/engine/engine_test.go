package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

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
	check.Same(t, `POST 1 | DATA 1 "h" | DATA 1 "e" | DATA 1 "l" | DATA 1 "l" | DATA 1 "o" | DATA 1 "" END`, r.backend(0).told(""), "what the backend sees")
}

var errRefused = errors.New("connection refused")

// Failed is called at once, before the next Pick: the client's next request may already have arrived.
func TestLostIsToldAtOnce(t *testing.T) {
	r, _, b := asked(t)
	r.e.lose(b.c, errors.New("reset"))
	check.Same(t, 1, r.failed, "calls of Failed at once")
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
	n, more, err := g.Read(make([]byte, 1))
	check.Same(t, "0 false connection refused", fmt.Sprint(n, more, err), "read after Leave")
}

// invite begins a request of this process, which a backend gets.
func (r *rig) invite(method string) (*Guest, *peer) {
	g, h := &Guest{}, &wire.Head{Method: method, Authority: "a", Path: "/", EndStream: method == "GET"}
	if !h.EndStream {
		h.ContentLength = -1
	}
	r.e.Invite(g, h, r.forward(r.ep))
	r.run()
	return g, r.backend(0)
}

// A caller that waits for room in a body learns that there is some, that the rest of the body is not wanted, or that
// the request has ended.
func TestGuestWaitsForRoom(t *testing.T) {
	const answer, lost = "HEADERS 1 :status=200 | DATA 1 no END | RST 1 NO_ERROR", ""
	for _, end := range []string{answer, lost} {
		r := newRig(t)
		g, b := r.invite("POST")
		part := make([]byte, 16<<10)
		for _, frames := range []string{"WINDOW 0 100000 | WINDOW 1 100000", end} {
			for wait := false; !wait; r.run() {
				_, wait = g.Pass(part, nil)
			}
			for len(g.Room()) > 0 {
				<-g.Room()
			}
			if b.say("%s", frames); frames == lost {
				r.lose(b, errRefused)
			}
			check.Same(t, 1, len(g.Room()), "signals after %q", frames)
		}
		if end == answer {
			more, wait := g.Pass(part, nil)
			check.Same(t, "false false", fmt.Sprint(more, " ", wait), "more, wait")
			n, _, err := g.Read(part)
			check.Same(t, "no EOF", fmt.Sprint(string(part[:n]), " ", err), "the answer")
		}
		r.run()
		r.clean()
	}
}

// Where only this process asks, a backend's connection is the oldest, and its watches end like others.
func TestEndOnOldest(t *testing.T) {
	r := newRig(t)
	r.plan.LongRunning = true
	g, b := r.invite("GET")
	b.say("HEADERS 1 :status=200")
	r.e.EndOn(func(*Conn) bool { return true }, nil, true)
	_, _, err := g.Read(make([]byte, 1))
	check.Same(t, "EOF", fmt.Sprint(err), "the watch")
	r.run()
	r.clean()
}

// A backend's stream for a caller has ended with both bodies, and is not reset when they were read.
func TestGuestEndsItsStream(t *testing.T) {
	r := newRig(t)
	g, b := r.invite("GET")
	b.see()
	b.say("HEADERS 1 :status=200 | DATA 1 fine END")
	check.Same(t, 0, len(b.c.streams), "streams of the backend")
	_, _, body, err := g.Take()
	check.Same(t, "fine <nil>", fmt.Sprint(string(body), " ", err), "the answer")
	r.run()
	check.Same(t, "", b.told(""), "what the backend sees at the end")
	r.clean()
}

// many returns n requests that the peer has not sent yet, the first ones of the connection.
func (p *peer) many(n int) []byte {
	for i := range n {
		p.headers(uint32(2*i+1), true, strings.Fields(okHead)...)
	}
	return p.bytes("")
}

// A turn under the mutex ends after so many requests or frames of DATA, however much input there is. What waits for
// another turn is counted once as input, and as held while it waits.
func TestTurnHasSoManyHeads(t *testing.T) {
	r, c := newClient(t)
	c.c.bytesIn = 0
	all := c.many(200)
	rest := all
	for _, want := range []int{64, 128, 192, 200} {
		rest = r.e.Feed(c.c, rest)
		check.Same(t, want, len(c.c.streams), "requests in progress")
		check.Same(t, len(rest), c.c.weight-c.c.heads-len(c.c.out)-2*c.c.inflight, "bytes that wait")
	}
	check.Same(t, [2]int64{0, int64(len(all))}, [2]int64{int64(len(rest)), c.c.bytesIn}, "bytes left, and counted")
	long := r.client()
	for id := range uint32(3) {
		long.headers(2*id+1, true, append(strings.Fields(okHead), "x-big="+strings.Repeat("b", 500<<10))...)
	}
	for rest = long.bytes(""); len(rest) > 0; {
		before := len(long.c.streams)
		rest = r.e.Feed(long.c, rest)
		check.Same(t, before+1, len(long.c.streams), "long heads, one in a turn")
	}
	dribbles := r.client()
	dribbles.say("POST 1")
	rest = r.e.Feed(dribbles.c, []byte(strings.Repeat(string(dribbles.bytes("DATA 1 x")), 3000)))
	check.Same(t, 10*(3000-2048)+1, len(rest), "bytes of DATA that wait, with the content of the last frame")
	lost := r.client()
	r.e.Feed(lost.c, all)
	r.e.lose(lost.c, errRefused)
	check.Same(t, 0, lost.c.weight, "bytes counted of a connection that has ended")
}

// A driver closes a connection once.
func TestEndedConnectionIsNotClosed(t *testing.T) {
	r, c := newClient(t)
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
	for s := p.c.streams[id]; n > 0 && s != nil; s = p.c.streams[id] {
		k := min(n, minMaxFrame, int(s.half[p.c.side].recv), int(p.c.recv))
		if k <= 0 {
			return
		}
		p.data(id, strings.Repeat("u", k), false)
		n -= k
	}
}

// BenchmarkEngineGet is one GET of 1 KiB through the engine alone: it reads the client's head and
// the backend's answer, and writes both.
func BenchmarkEngineGet(b *testing.B) {
	get := engineGet(b)
	b.ReportAllocs()
	for b.Loop() {
		get()
	}
}

func TestEngineAllocatesNothing(t *testing.T) {
	check.Same(t, 0, testing.AllocsPerRun(1000, engineGet(t)), "allocations per request")
}

// engineGet returns a function that performs one request. Both peers' bytes are made in advance,
// with all fields in the tables, as on a connection that has been in use.
func engineGet(t testing.TB) func() {
	r := newRig(t)
	r.plan.Retries, r.plan.Deadline = 2, TickEvery*wheelSlots
	r.plan.Remove = func(name string) bool { return name == "authorization" }
	r.plan.Set = []hpack.HeaderField{field("x-remote-user", "alice"), field("x-remote-group", "devs")}
	plan := r.forward(r.ep)
	plan.Authority, plan.Done = "", func(Outcome) {}
	r.e.Decide = func(*Conn, *wire.Head, func(Plan)) (Plan, bool) { return plan, true }
	ask := func(c *peer, id uint32) []byte {
		return c.bytes(`HEADERS %d :method=GET :scheme=https :authority=cluster.example :path=/apis/metrics.k8s.io/v1beta1/nodes accept=application/json`+
			` user-agent=kubectl/v1.36.3 "authorization=Bearer 0123456789abcdef" END | WINDOW 0 1024`, id)
	}
	answer := func(b *peer, id uint32) []byte {
		return b.bytes("HEADERS %d :status=200 content-type=application/json content-length=1024 | DATA %d (1024) END", id, id)
	}
	c := r.client()
	r.feed(c.c, ask(c, 1))
	b := r.backend(0)
	r.feed(b.c, answer(b, 1))
	in, out := ask(c, 3), answer(b, 3)
	e, id := r.e, uint32(3)
	drop := func() {
		for i, c := range e.dirty {
			c.dirty, e.dirty[i] = false, nil
			c.Wrote(c.take(), nil)
		}
		e.dirty = e.dirty[:0]
		for i := range e.calls {
			if e.calls[i].done != nil {
				e.calls[i].done(e.calls[i].outcome)
			}
			e.calls[i] = call{}
		}
		e.calls = e.calls[:0]
	}
	get := func() {
		// Only the stream's ID changes in the frames' bytes.
		for _, frame := range [][]byte{in, out, out[len(out)-1024-wire.FrameHeaderLen:]} {
			binary.BigEndian.PutUint32(frame[5:], id)
		}
		e.Feed(c.c, in)
		drop()
		e.Feed(b.c, out)
		drop()
		id += 2
	}
	get() // its fields enter the engine's tables
	return get
}
