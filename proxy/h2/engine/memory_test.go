package engine

import (
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// While many connections hold little each, and too much together, a turn does not look at all of
// them. A connection that begins to hold much is still found at once, or at the next tick.
func TestManySmallHolders(t *testing.T) {
	r := newRig(t)
	c, other := r.client(), r.client()
	r.e.Memory.Add(r.e.Memory.Room() * 5) // by other shards
	r.e.Due()
	other.c.queued = 2 * int(hold.Least) // found only by a look, because no more is held
	r.e.Due()
	if other.c.cut {
		t.Error("a turn looked again, although no more was held")
	}
	r.heldDial = true
	c.request(1, "POST", false)
	c.upload(1, 3*int(hold.Least)/2)
	r.e.Due()
	if !other.c.cut || !c.c.cut {
		t.Errorf("when more is held, the large holders are cut: %v, %v", other.c.cut, c.c.cut)
	}
	small, late := r.client(), r.client()
	late.c.queued = 2 * int(hold.Least)
	r.tick(TickEvery)
	if !late.c.cut || small.c.cut {
		t.Errorf("at a tick, only the large holder is cut: %v, %v", late.c.cut, small.c.cut)
	}
}

// The body of an answer for a client that does not read is not copied: a connection holds at most
// one output buffer of it, for all its streams.
func TestAnswerWaitsWhereItIs(t *testing.T) {
	body := make([]byte, 10<<20)
	r := newRig(t)
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
		return Plan{Answer: &Answer{Status: http.StatusOK, Fields: []hpack.HeaderField{field(":status", "200")}, Body: body}, Done: func(o Outcome) { r.outcomes = append(r.outcomes, o) }}, true
	}
	c := r.client()
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.say("WINDOW 0 %d", 1<<30)
	c.silent = true
	const streams = 50
	for i := range uint32(streams) {
		c.get(1 + 2*i)
	}
	if got := len(c.c.out) + c.c.inflight; got > r.e.lim.writeLimit+streams*256 || r.e.Count.Queued.Load() != 0 {
		t.Errorf("%d bytes of output, %d in queues", got, r.e.Count.Queued.Load())
	}
	c.say("RST 1 CANCEL")
	if len(r.outcomes) != 1 || r.outcomes[0].Reason != ReasonClientReset || r.outcomes[0].Status != http.StatusOK {
		t.Errorf("outcomes after a reset: %+v", r.outcomes)
	}
	if s := c.c.streams[3]; s == nil || s.half[down].q.size == 0 {
		t.Error("another stream lost its body")
	}
	if n := len(c.c.streams); n != streams-1 {
		t.Errorf("%d streams are left, want all except one", n)
	}
}

// A client that does not read its answers may send requests until 256 KiB of output wait for it.
func TestOutputThatMayWait(t *testing.T) {
	const most, each = 256 << 10, 8 << 10
	r := newRig(t)
	plan := Plan{Answer: &Answer{Status: 200, Fields: []hpack.HeaderField{field(":status", "200"), field("x", strings.Repeat("{", each))}}}
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return plan, true }
	c := r.client()
	c.silent = true
	for id := uint32(1); !c.c.Over() && id < 1000; id += 2 {
		c.get(id)
	}
	if n := len(c.c.out) + c.c.inflight; n <= most || n > most+3*each {
		t.Errorf("%d bytes wait", n)
	}
	if c.say("RST 0 CANCEL"); !c.c.closing || c.c.Over() {
		t.Errorf("closing: %v; the input of a closing connection must still be read", c.c.closing)
	}
}

// The heads and trailers of requests that wait count as held, too.
func TestHeldFieldsAreCounted(t *testing.T) {
	big := "x-big=" + strings.Repeat("b", 15<<10)
	for _, tc := range []struct {
		name string
		ask  func(r *rig, c *peer)
		want int64
	}{
		{"heads of requests that nobody answers", func(_ *rig, c *peer) {
			for id := uint32(1); id < 20; id += 2 {
				c.get(id, big)
			}
		}, 10 * 15 << 10},
		{"uploads that no handler reads", func(r *rig, c *peer) {
			var later []func(Plan)
			r.decide = func(_ *wire.Head, resume func(Plan)) (Plan, bool) {
				later = append(later, resume)
				return Plan{Serve: http.NotFoundHandler()}, len(later)%2 == 0
			}
			for id := uint32(1); id < 20; id += 2 {
				c.request(id, "POST", false)
				c.upload(id, 65<<10)
				c.send(id, true, big)
				later[len(later)-1](Plan{Serve: http.NotFoundHandler()}) // only used for those without a plan
			}
		}, 10 * 65 << 10},
		{"trailers of answers that nobody reads", func(r *rig, c *peer) {
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			c.gets(1, 19)
			b := r.backend(0)
			for id := uint32(1); id < 20; id += 2 {
				b.headers(id, false, ":status=200")
				_ = b.fr.WriteData(id, false, []byte("x"))
				b.send(id, true, big)
			}
		}, 10 * 15 << 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.e.Memory = hold.New(256 << 20)
			c := r.client()
			tc.ask(r, c)
			if r.e.held < tc.want {
				t.Errorf("%d bytes are counted, want at least %d", r.e.held, tc.want)
			}
			r.loseAll(c)
			r.clean()
		})
	}
}

// A head may be large if there is room: for the connection, and for all of its address.
func TestLargeHeadsNeedRoom(t *testing.T) {
	for _, tc := range []struct {
		name   string
		memory int64
		others int64 // what heads of other connections of the address hold
		short  bool
		split  bool // the head is not finished
		cut    bool
		opens  bool
	}{
		{name: "room", memory: 256 << 20, opens: true},
		{name: "no room for what a handler would make of it", memory: 8 << 20},
		{name: "no room for the address", memory: 256 << 20, others: 65 << 20, cut: true},
		{name: "a short one", memory: 64 << 20, others: 31 << 20, short: true, opens: true},
		{name: "a short one when half is held", memory: 64 << 20, others: 33 << 20, short: true},
		{name: "an unfinished short one when half is held", memory: 64 << 20, others: 33 << 20, short: true, split: true, cut: true},
		{name: "room for an unfinished one", memory: 256 << 20, split: true},
		{name: "no room for an unfinished one", memory: 4 << 20, split: true, cut: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, big := newRig(t), 300<<10
			if tc.short {
				big = 20 << 10
			}
			r.e.Memory = hold.New(tc.memory)
			c := r.client()
			c.c.Source = r.e.Memory.Source("10.0.0.1")
			r.e.Memory.Source("10.0.0.1").Give(-tc.others)
			if tc.split {
				_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x")})
				for range big/(16<<10) + 1 {
					_ = c.fr.WriteContinuation(1, false, make([]byte, 16<<10))
				}
				c.flush()
			} else {
				c.get(1, "x-big="+strings.Repeat("b", big))
			}
			if c.c.closing != tc.cut || (c.c.streams[1] != nil) != tc.opens {
				t.Errorf("closing: %v, opened: %v", c.c.closing, c.c.streams[1] != nil)
			}
			if held := int(r.e.held); (tc.opens || tc.split) && !tc.cut && held < big {
				t.Errorf("%d bytes are counted", held)
			}
		})
	}
}

// The buffer of a large head is kept for the next one. Whoever has it is counted with it, and
// nobody has it who sends little.
func TestBlockBufferIsCounted(t *testing.T) {
	r := newRig(t)
	for _, sent := range []int{1, 16 << 10, 64 << 10, 128 << 10} {
		large, c := r.client(), r.client()
		large.get(1, "x-big="+strings.Repeat("b", 400<<10))
		before := r.e.held
		_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, min(sent, 16<<10))})
		for range sent/(16<<10) - 1 {
			_ = c.fr.WriteContinuation(1, false, make([]byte, 16<<10))
		}
		c.flush()
		if held, has := int(r.e.held-before), cap(c.c.block); held < has || has > 8*sent {
			t.Errorf("%d bytes sent, %d held, %d counted", sent, has, held)
		}
	}
}

// Whether a head finds room does not depend on what another one has left.
func TestBlockBufferRefusesNobody(t *testing.T) {
	r := newRig(t)
	r.e.Memory = hold.New(64 << 20)
	for _, before := range []int{1, 1000 << 10} {
		large, c := r.client(), r.client()
		large.get(1, "x-big="+strings.Repeat("b", before))
		r.e.Memory.Add(52 << 20)
		_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 16<<10)})
		for range 10 {
			_ = c.fr.WriteContinuation(1, false, make([]byte, 16<<10))
		}
		c.flush()
		if c.c.closing {
			t.Errorf("after a head of %d bytes, an unfinished one finds no room", before)
		}
		r.e.Memory.Add(-52 << 20)
		r.lose(large, errRefused)
		r.lose(c, errRefused)
	}
}

// An object that is kept for reuse cannot be freed twice: two connections would share it.
func TestFreedTwice(t *testing.T) {
	for _, tt := range []struct {
		name string
		free func(r *rig) func()
	}{
		{"a chunk", func(r *rig) func() { c := r.e.chunk(); return func() { r.e.freeChunk(c) } }},
		{"a buffer", func(r *rig) func() { b := make([]byte, 0, 4096); return func() { r.e.buffers.Put(b) } }},
		{"a stream", func(r *rig) func() {
			c := r.client()
			s := r.e.newStream(c.c, 1)
			s.unlinkLeg(up)
			return func() { s.endIfDone() }
		}},
		{"what is needed to send a request", func(r *rig) func() {
			s := stream{e: r.e}
			to := r.e.newSending(&Plan{})
			return func() { s.sending = to; s.freeSending() }
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
		s.unlinkLeg(up)
		crowd = append(crowd, s)
	}
	kept := 0
	for _, s := range crowd {
		s.endIfDone()
	}
	for s := r.e.streams; s != nil; s = s.free {
		kept++
	}
	if kept != maxFreeStreams || r.e.freeStreams != kept {
		t.Errorf("%d streams are kept and %d counted, want %d", kept, r.e.freeStreams, maxFreeStreams)
	}
}
