package engine

import (
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
	check.Same(t, false, other.c.cut, "a turn looked again, although no more was held")
	r.heldDial = true
	c.request(1, "POST", false)
	c.upload(1, 3*int(hold.Least)/2)
	r.e.Due()
	check.Same(t, [2]bool{true, true}, [2]bool{other.c.cut, c.c.cut}, "when more is held, the large holders are cut")
	small, late := r.client(), r.client()
	late.c.Sealed = 2 * int(hold.Least)
	r.e.Feed(late.c, nil)
	r.tick(TickEvery)
	check.Same(t, [2]bool{true, false}, [2]bool{late.c.cut, small.c.cut}, "cut at a tick: the large holder, and the small one")
}

// A head may be large if there is room: for the connection, and for all of its address.
func TestLargeHeadsNeedRoom(t *testing.T) {
	for _, tc := range []struct {
		name       string
		memory     int64
		others     int64 // what heads of other connections of the address hold
		short      bool
		split      bool // the head is not finished
		cut, opens bool
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
		r, big := newRig(t), 300<<10
		if tc.short {
			big = 20 << 10
		}
		r.e.Memory = hold.New(tc.memory)
		c := r.client()
		c.c.Source = r.e.Memory.Source("10.0.0.1")
		r.e.Memory.Source("10.0.0.1").Give(-tc.others)
		if tc.split {
			c.begin(big + 16<<10)
		} else {
			c.get(1, "x-big="+strings.Repeat("b", big))
		}
		check.Same(t, [2]bool{tc.cut, tc.opens}, [2]bool{c.c.closing, c.c.streams[1] != nil}, "%s: closing, and opened", tc.name)
		check.Same(t, false, (tc.opens || tc.split) && !tc.cut && int(r.e.held) < big, "%s: only %d bytes are counted", tc.name, r.e.held)
	}
}

// An answer of ours that its client does not let come counts with what its stream and its request take.
func TestUnreadAnswersAreCounted(t *testing.T) {
	r, c := newClient(t)
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
		p := r.forward()
		p.Forward, p.Answer = nil, &Answer{200, []hpack.HeaderField{field(":status", "200")}, []byte("x")}
		return p, true
	}
	c.get(1)
	check.Same(t, 0, c.c.heads, "counted for an answer that was sent")
	c.say("SETTINGS INITIAL_WINDOW_SIZE=0")
	c.gets(3, 5)
	check.Same(t, true, c.c.heads >= 4<<10, "%d bytes are counted for two answers that wait", c.c.heads)
	c.say("WINDOW 3 1 | WINDOW 5 1")
	r.clean()
}

// What is added to a head for its user counts like the head, until the backend answers.
func TestAddedFieldsAreCounted(t *testing.T) {
	r, c := newClient(t)
	r.plan.Set = make([]hpack.HeaderField, 4000)
	for i := range r.plan.Set {
		r.plan.Set[i] = field("x-remote-group", "g")
	}
	c.get(1)
	check.Same(t, true, c.c.heads >= 4000*fieldSize, "%d bytes are counted", c.c.heads)
	r.backend(0).say("HEADERS 1 :status=200 END")
	r.clean()
}

func (p *peer) begin(n int) {
	p.say("HEADERS 1 OPEN")
	for ; n > 0; n -= minMaxFrame {
		p.say("CONTINUATION 1 (%d) OPEN", min(n, minMaxFrame))
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
		c.begin(sent)
		check.Within(t, 0, min(int(r.e.held-before), 8*sent), cap(c.c.block), "bytes held, of which %d are counted, after %d were sent", r.e.held-before, sent)
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
		c.begin(11 * 16 << 10)
		check.Same(t, false, c.c.closing, "after a head of %d bytes, an unfinished one finds no room", before)
		r.e.Memory.Add(-52 << 20)
		r.lose(large, errRefused)
		r.lose(c, errRefused)
	}
}

// What waits for a client that does not read counts by its length, so it does not keep a large buffer of others.
func TestWaitingOutputHasItsOwnSize(t *testing.T) {
	r, c := newClient(t)
	c.silent = true
	c.say("PING pingpong")
	c.c.take() // its socket is full
	r.e.buffers.Put(make([]byte, 128<<10))
	c.say("PING pingpong")
	waits := len(c.c.out)
	check.Same(t, 128<<10, cap(c.c.out), "the size of the buffer at first")
	r.tick(TickEvery)
	check.Same(t, waits, len(c.c.out), "bytes that wait")
	check.Within(t, waits, 8<<10, cap(c.c.out), "the size of their buffer")
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
			defer func() { check.Same(t, true, recover() != nil, "it panics when it is freed twice") }()
			free()
		})
	}
}

// After a crowd only a limited number of streams and chunks is kept for reuse.
func TestFewAreKept(t *testing.T) {
	r, c := newClient(t)
	var crowd []*stream
	for id := range uint32(maxFreeStreams + 10) {
		s := r.e.newStream(c.c, 2*id+1)
		s.unlinkLeg(up)
		crowd = append(crowd, s)
	}
	for _, s := range crowd {
		s.endIfDone()
	}
	check.Same(t, maxFreeStreams, len(r.e.streams), "streams for reuse")
	for _, n := range []int{manyFields, manyFields + 1} {
		s := stream{e: r.e, sending: &sending{fields: make([]hpack.HeaderField, n)}}
		s.freeSending()
	}
	check.Same(t, 1, len(r.e.sendings), "fields of requests for reuse: not those of huge heads")
	var used []*chunk
	for range maxFreeChunks + 1 {
		used = append(used, r.e.chunk())
	}
	for _, c := range used {
		r.e.freeChunk(c)
	}
	check.Same(t, maxFreeChunks, len(r.e.chunks), "chunks for reuse")
}

// A body can be sent again only while all of it is kept.
func TestBodyIsLost(t *testing.T) {
	for _, tt := range []struct {
		name         string
		keep         bool
		read         int
		forget, lost bool
		kept, size   int
	}{
		{name: "unread", size: 10},
		{name: "read", read: 1, lost: true, size: 9},
		{name: "read and kept", keep: true, read: 1, kept: 1, size: 9},
		{name: "forgotten before it was read", keep: true, forget: true, size: 10},
		{name: "read, kept and forgotten", keep: true, read: 1, forget: true, lost: true, size: 9},
		{name: "read and forgotten", read: 1, forget: true, lost: true, size: 9},
	} {
		e, q := newRig(t).e, queue{keep: tt.keep}
		q.push(e, make([]byte, 10))
		if tt.read > 0 {
			q.read(e, tt.read)
		}
		if tt.forget {
			q.forget(e)
		}
		check.Same(t, tt.lost, q.lost, "%s: lost", tt.name)
		check.Same(t, tt.kept, q.kept, "%s: bytes kept", tt.name)
		check.Same(t, tt.size, q.size, "%s: bytes unread", tt.name)
		q.clear(e)
		check.Same(t, [4]int{}, [4]int{q.off, q.size, q.kept, int(q.chunks)}, "%s: cleared", tt.name)
	}
}
