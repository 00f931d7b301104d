package engine

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A connection with many requests that get 401 is sent GOAWAY, and the other requests on it are still answered.
func TestUnauthorizedFlood(t *testing.T) {
	r := newRig(t)
	r.decide = func(h *wire.Head, _ func(Plan)) (Plan, bool) {
		if h.Method == "GET" {
			return Plan{Serve: http.NotFoundHandler()}, true
		}
		return r.forward(r.ep), true
	}
	c := r.client()
	c.request(1, "POST", true)
	b := r.backend(0)
	b.see()
	id, frames := uint32(3), ""
	for ; id < 10_000 && !strings.Contains(frames, "GOAWAY"); id += 2 {
		c.get(id)
		r.locals[len(r.locals)-1].End(http.StatusUnauthorized, []hpack.HeaderField{{Name: ":status", Value: "401"}}, nil)
		r.run()
		frames = strings.Join(c.see(), "|")
	}
	if n := id / 2; n < 90 || n > 130 {
		t.Errorf("%d requests were answered with 401", n)
	}
	if !strings.Contains(frames, "NO_ERROR|HEADERS") {
		t.Errorf("the last one sees %s", frames)
	}
	answered := len(r.locals)
	for range 400 { // requests that crossed the GOAWAY
		if c.get(id); len(r.locals) > answered {
			t.Fatalf("stream %d was answered", id)
		}
		id += 2
	}
	b.respond(1, "ok")
	c.want("HEADERS 1 :status=200", `DATA 1 "ok" END`)
	r.clean()
	c.wantClosed(true, "the connection is still open")
}

// The client is sent away while it can still afford what it sends meanwhile: frames that come with
// an almost exhausted budget do not end the requests that wait for their 401.
func TestUnauthorizedCrowd(t *testing.T) {
	r := newRig(t)
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return Plan{Serve: http.NotFoundHandler()}, true }
	c := r.client()
	for id := range uint32(3) {
		c.get(2*id + 1)
	}
	_ = c.c.spend(budget.Burst - costUnwelcome - 10) // a little is left
	frames := ""
	for _, l := range r.locals {
		l.End(http.StatusUnauthorized, []hpack.HeaderField{{Name: ":status", Value: "401"}}, nil)
		r.run()
		for range 20 {
			_ = c.fr.WritePing(false, [8]byte{})
		}
		c.flush()
		frames += strings.Join(c.see(), "|")
	}
	if !strings.Contains(frames, "HEADERS 5 :status=401") || strings.Contains(frames, "ENHANCE_YOUR_CALM") {
		t.Errorf("the client sees %s", frames)
	}
}

// Plan.Unwelcome is charged like a 401. Resets after the answer cost next to nothing.
func TestUnwelcome(t *testing.T) {
	r := newRig(t)
	answer := &Answer{Status: http.StatusTooManyRequests, Fields: []hpack.HeaderField{{Name: ":status", Value: "429"}, {Name: "content-length", Value: "7"}}, Body: []byte("not now")}
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
		return Plan{Answer: answer, Unwelcome: true, Done: func(o Outcome) { r.outcomes = append(r.outcomes, o) }}, true
	}
	c := r.client()
	n := uint32(0)
	for ; n < 1000 && c.c.goAway == goAwayNone; n++ {
		c.get(1 + 2*n)
		c.say("RST %d CANCEL", 1+2*n)
	}
	if n < 80 || n > 130 || len(r.outcomes) != int(n) {
		t.Errorf("%d requests were answered, %d ended", n, len(r.outcomes))
	}
	if got := strings.Join(c.see(), "|"); !strings.Contains(got, `DATA 1 "not now" END`) || !strings.HasSuffix(got, `DATA `+fmt.Sprint(2*n-1)+` "not now" END`) {
		t.Errorf("the client sees %s", got)
	}
	r.clean()
}

// A backend that allows many streams cannot hold up a shard by having all of them visited again and
// again: a GOAWAY that takes back nothing new visits none, and each that takes back more is
// charged. A graceful end is free, with any number of streams.
func TestGoAwayFlood(t *testing.T) {
	for _, tc := range []struct{ clients, accepted int }{{90, 4}, {8, 34}} {
		r, b := crowded(t, tc.clients)
		before, top := len(b.c.streams), b.c.maxID
		b.say("GOAWAY %d NO_ERROR", topStreamID)
		b.say("GOAWAY %d NO_ERROR", top-2)
		if o := r.outcomes; b.c.closing || len(b.c.streams) != before-1 || len(o) != 1 || !strings.Contains(fmt.Sprint(o[0].Err), "GOAWAY") {
			t.Fatalf("%d of %d streams are left after a graceful GOAWAY, closing: %v, ended: %+v", len(b.c.streams), before, b.c.closing, o)
		}
		_ = b.fr.WriteGoAway(top-2, http2.ErrCodeNo, nil)
		same := bytes.Clone(b.to.Bytes())
		b.to.Reset()
		if n := testing.AllocsPerRun(10, func() { r.e.Feed(b.c, same) }); n > 0 { // the ids of all streams are a slice
			t.Errorf("%v allocations for a GOAWAY that takes back nothing", n)
		}
		n := 0
		for ; n < 100; n++ {
			if b.say("GOAWAY %d NO_ERROR", top-4-2*uint32(n)); b.c.closing {
				break
			}
			if got := len(b.c.streams); got != before-2-n {
				t.Fatalf("%d of %d streams are left after %d GOAWAYs", got, before, n)
			}
		}
		if n != tc.accepted {
			t.Errorf("%d more GOAWAYs each visited %d streams", n, before)
		}
	}
}

// crowded returns a backend's connection with the requests of many clients.
func crowded(t *testing.T, clients int) (r *rig, b *peer) {
	const each = 250
	r = newRig(t)
	r.client().get(1)
	r.backend(0).say("SETTINGS MAX_CONCURRENT_STREAMS=%d", uint32(clients*each))
	for range clients {
		r.client().gets(1, 2*each-1)
	}
	b = r.backends[0]
	for _, other := range r.backends {
		if len(other.c.streams) > len(b.c.streams) {
			b = other
		}
	}
	return r, b
}

// amplify sends a request with a field of the table, times over: few bytes that decode to many.
func (p *peer) amplify(id uint32, times int) {
	block := p.encode(strings.Fields(okHead)...)
	for range times {
		block = append(block, 0x80|62) // the newest entry
	}
	_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true, EndHeaders: true})
	p.flush()
}

// HPACK bombs end the connection as other heads do that are too large: the rest is not decoded.
func TestBombs(t *testing.T) {
	_, c := newClient(t, func(e *Engine) { e.fields.Max = 4096 })
	c.get(1, "x-bomb="+strings.Repeat("v", 3000)) // enters the table
	id := uint32(3)
	for ; id < 1000 && !c.c.closing; id += 2 {
		c.amplify(id, 4000)
	}
	if n := id / 2; n > budget.Burst/budget.Refused+2 {
		t.Errorf("%d bombs were read", n)
	}
}

// Small heads that decode to large ones cannot cause unlimited connections or output: not to a
// backend that reads nothing, and not from many connections.
func TestAmplifiedHeads(t *testing.T) {
	r := newRig(t)
	r.plan.Retries = 2
	ended := 0
	for range 10 {
		c := r.client()
		c.get(1, "x-large="+strings.Repeat("v", 3900))
		for id := uint32(3); id < 600 && !c.c.closing; id += 2 {
			c.amplify(id, 57)
			for _, b := range r.backends {
				if !b.c.started {
					b.say("SETTINGS MAX_CONCURRENT_STREAMS=250")
				}
				b.silent = true
			}
		}
		if c.c.closing {
			ended++
		}
	}
	out := 0
	for _, b := range r.backends { // the second one is for long heads
		out += len(b.c.out)
	}
	if len(r.backends) > 2 || out > r.e.lim.backlogLimit+maxHeader {
		t.Errorf("%d connections with %d bytes of output", len(r.backends), out)
	}
	if ended != 10 {
		t.Errorf("%d connections were ended", ended)
	}
}

// The unanswered heads of a connection are bounded, even without compression.
func TestUnansweredHeads(t *testing.T) {
	r, c := newClient(t)
	large := "x-large=" + strings.Repeat("{", 200<<10)
	refused := uint32(0)
	for id := uint32(1); id < 60; id += 2 {
		c.get(id, large)
		if refused == 0 && c.c.wasReset(id) {
			refused = id
		}
	}
	if got := 200 << 10 * int(refused-1) / 2; refused == 0 || got > maxHeads || c.c.heads > maxHeads {
		t.Fatalf("%d streams of 200 KiB are accepted, %d bytes", (refused-1)/2, c.c.heads)
	}
	b := r.backend(0)
	b.respond(1, "")
	c.get(101, large)
	if c.c.wasReset(101) {
		t.Error("a stream is refused although an earlier one was answered")
	}
}

// Real clients' heads are only charged as frames: tokens, groups, long selectors, from the table or literal.
func TestOrdinaryHeadsAreFree(t *testing.T) {
	_, c := newClient(t)
	fields := []string{"authorization=Bearer " + strings.Repeat("t", 3000), "user-agent=" + strings.Repeat("u", 300)}
	for range 60 {
		fields = append(fields, "impersonate-group="+strings.Repeat("g", 20)+string(rune('a'+len(fields)%26)))
	}
	before := c.c.budget
	for id := uint32(1); id < 200; id += 2 {
		c.get(id, fields...)
		check.Same(t, true, before.Spend(budget.Frame, 0), "the test's own")
	}
	if c.c.budget != before {
		t.Errorf("budget %+v, want %+v", c.c.budget, before)
	}
}

// repeat repeats what each peer sends, until the last one's connection is closed. %d is another stream each time.
func (s *teller) repeat(most int, sends []string) (rounds int, last *peer) {
	for ; rounds < most && (last == nil || !last.c.closing); rounds++ {
		for _, send := range sends {
			name, text, _ := strings.Cut(send, " ")
			last = s.member(name)
			last.say("%s", strings.ReplaceAll(text, "%d", strconv.Itoa(2*rounds+1)))
		}
	}
	return rounds, last
}

// flood checks how long a flood lasts, and how much its sender, who reads nothing, makes us hold.
func (s *teller) flood(sends []string) (rounds int) {
	name, _, _ := strings.Cut(sends[len(sends)-1], " ")
	s.member(name).silent = true
	rounds, last := s.repeat(100_000, sends)
	check.Same(s.t, true, len(last.c.out) < 200<<10, "%s: %d bytes of output", s.at, len(last.c.out))
	last.take()
	check.Same(s.t, true, strings.Contains(last.told(""), "ENHANCE_YOUR_CALM"), "%s: calm", s.at)
	return rounds
}

// The resets of an owner who cancels many requests at once go out slowly on a connection that others share: servers end
// one with 200 in 30 s. Others' go at once, and what the server has not ended takes no room from new requests.
func TestManyCancelled(t *testing.T) {
	const room, cancelled = 250, 240
	r, c := newClient(t)
	r.plan = Plan{LongRunning: true, Owner: "bob"}
	c.gets(1, 3)
	b := r.backend(0)
	_ = b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: room})
	b.headers(1, false, ":status=200")
	b.send(3, false, ":status=200")
	r.plan.Owner = "ann"
	ann := r.client()
	ann.gets(1, 2*cancelled-1)
	resets := func() (n int) {
		for _, f := range b.see() {
			if strings.HasPrefix(f, "RST ") {
				n++
			}
		}
		return n
	}
	check.Same(t, 0, resets(), "resets before")
	for id := uint32(1); id < 2*cancelled; id += 2 {
		_ = ann.fr.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	ann.flush()
	total := resets()
	if total < 20 || total > 60 {
		t.Errorf("%d resets at once", total)
	}
	_ = c.fr.WriteRSTStream(3, http2.ErrCodeCancel)
	c.flush()
	check.Same(t, 1, resets(), "of another owner, at once")
	for range 1 << 18 { // small events of a watch that the server still has
		_ = b.fr.WriteData(b.c.late[0].id, false, []byte("x"))
	}
	b.flush()
	check.Same(t, false, b.c.closing, "the connection ends")
	r.plan.Owner = "carl"
	other := r.client()
	other.gets(1, 2*100-1)
	check.Same(t, 2, len(r.backends), "connections when the server is full")
	check.Same(t, room-(cancelled-total), len(b.c.streams), "streams that it has room for")
	// What the server ends needs no reset: a stream by a reset of its own, or by its answer's end.
	late := []uint32{b.c.late[0].id, b.c.late[1].id, b.c.late[2].id, b.c.late[3].id}
	_ = b.fr.WriteRSTStream(late[0], http2.ErrCodeNo)
	b.headers(late[1], true, ":status=200")
	b.headers(late[2], false, ":status=200")
	_ = b.fr.WriteData(late[3], true, nil)
	b.flush()
	check.Same(t, cancelled-total-3, len(b.c.late), "resets that wait")
	for range 4 {
		last := 0
		for range 30 {
			r.tick(time.Second)
			b.pong()
			r.backend(1).pong()
			last += resets()
		}
		if total += last; last > 150 {
			t.Errorf("%d resets in 30 s", last)
		}
	}
	check.Same(t, cancelled-3, total, "resets in the end")
	r.lose(other, errRefused)
	r.loseAll(c)
	r.clean()
}
