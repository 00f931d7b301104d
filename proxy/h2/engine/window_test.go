package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// goWindow is the window of a stream of Go's client (transportDefaultStreamFlow), and goServer that
// of a connection to Go's server.
const (
	goWindow = 4 << 20
	goServer = 1 << 20
)

// rounds returns the number of round trips that p needs to send n bytes on each stream, limited
// only by windows. send sends as much as the windows allow; credit arrives one round trip later.
func (p *peer) rounds(distance time.Duration, streams, n int, end bool, send func(id uint32, n int)) int {
	left := make([]int, streams)
	for i := range left {
		left[i] = n
	}
	for round := 1; ; round++ {
		all, may, done := int(p.c.recv), make([]int, streams), true
		for i := range left {
			if left[i] > 0 {
				may[i] = int(p.c.streams[uint32(2*i+1)].half[p.c.side].recv)
			}
		}
		for i := range left {
			k := max(0, min(left[i], may[i], all))
			send(uint32(2*i+1), k)
			all -= k
			if left[i] -= k; left[i] == 0 && k > 0 && end {
				p.data(uint32(2*i+1), "", true)
			}
			done = done && left[i] == 0
		}
		if done {
			return round
		}
		p.r.e.report(1)
		p.r.tick(distance)
		for _, other := range p.r.peers { // so that none of them is silent
			other.pong()
		}
		if round > 10_000 {
			p.r.t.Fatal("no end after 10,000 round trips")
		}
	}
}

// A measurement that a peer never ended, because it had no more to send, is replaced by another.
func TestMeasurementsEnd(t *testing.T) {
	var m meter
	for _, step := range []struct {
		at   time.Duration
		want bool
	}{{1, true}, {1 + far, false}, {2 + far, true}, {3 + far, false}} {
		check.Same(t, step.want, m.start(step.at, 100), "at %v: begun", step.at)
	}
	check.Same(t, 0, m.received(4+far, 99), "what it took, with a byte left")
	check.Same(t, 3, m.received(5+far, 1), "what it took")
	check.Same(t, 0, m.received(6+far, 1), "what it took, not measured")
}

// A stream that a panic ends has no wide window promised any more.
func TestPanicKeepsNoPromise(t *testing.T) {
	r, _, b := asked(t)
	s := b.c.streams[1]
	b.c.widen(&s.half[down], 1<<20)
	s.dropStream()
	check.Same(t, true, r.e.Memory.Promise(r.e.Memory.Limit()/2), "as much as may be promised can be")
}

// A window is used well if it lasts for at most eight round trips, and grows if for two or fewer.
// The shortest time so far is taken for a round trip, unless no round trip takes it. It grows at most to widest.
func TestJudge(t *testing.T) {
	var r reach
	for i, step := range []struct {
		took, shortest time.Duration
		used, grows    bool
	}{
		{near - 1, 0, false, false},
		{far + 1, 0, false, false},
		{far, far, true, true},
		{100 * time.Millisecond, 100 * time.Millisecond, true, true},
		{200 * time.Millisecond, 100 * time.Millisecond, true, true},
		{201 * time.Millisecond, 100 * time.Millisecond, true, false},
		{800 * time.Millisecond, 100 * time.Millisecond, true, false},
		{801 * time.Millisecond, 100 * time.Millisecond, false, false},
		{near, near, true, true},
	} {
		now, before, want := time.Duration(i+1), r.seen, int32(1000)
		if step.grows {
			want *= growth
		}
		if step.used {
			before = now
		}
		check.Same(t, want, r.judge(now, step.took, 1000), "window after %v", step.took)
		check.Same(t, step.shortest, r.shortest, "round trip after %v", step.took)
		check.Same(t, before, r.seen, "used well at, after %v", step.took)
	}
	for size, want := range map[int32]int32{widest / growth / 2: widest / 2, widest - 1: widest, widest: widest} {
		check.Same(t, want, new(reach).judge(0, 2*near, size), "what %d grows to", size)
	}
	for _, step := range []struct {
		stream, left  int32
		after, remain time.Duration
	}{{0, 0, rest + 1, near}, {1, 1, rest, near}, {1, 0, rest + 1, 0}} {
		r.stream = step.stream
		r.rest(r.seen + step.after)
		check.Same(t, step.left, r.stream, "window of streams after %v", step.after)
		check.Same(t, step.remain, r.shortest, "round trip after %v", step.after)
	}
}

// Wide windows share the room. A window shrinks only by what has not been promised.
func TestShares(t *testing.T) {
	const room, promised = 128 << 20, 1000
	r := newRig(t)
	c := r.client().c
	first := streamWindow
	for _, tt := range []struct {
		name                  string
		stream, wide          int32
		room                  int64 // what is left of it; 0 means all
		credit, extra, queued int32
		long                  bool
		taken                 bool // by others in the process
		want                  int32
	}{
		{name: "alone", stream: widest, want: room / minSharers},
		{name: "little used", stream: first + 10, want: 10},
		{name: "the seventeenth", stream: widest, wide: minSharers, want: room / (minSharers + 1)},
		{name: "one of seventeen", stream: widest, wide: minSharers + 1, extra: 1, want: room / (minSharers + 1)},
		{name: "little room", stream: widest, room: 10, extra: 5, want: 15},
		{name: "no room in the process", stream: widest, taken: true},
		{name: "long-running", stream: widest, long: true, want: (growth - 1) * first},
		{name: "half full", stream: widest, queued: first / 2, want: room / minSharers},
		{name: "over half full", stream: widest, queued: first/2 + 1},
		{name: "too wide", extra: 100, credit: 200, want: 0},
		{name: "too wide, and promised", extra: 100, credit: 10, want: 90},
		{name: "too wide, and to be sent again", extra: 100, credit: -10, want: 100},
		{name: "too wide, and over half full", extra: 100, credit: 10, queued: first, want: 90},
	} {
		r.e.Memory = hold.New(4 * room)
		if tt.taken {
			check.Same(t, true, r.e.Memory.Promise(2*room), "%s: promised to others", tt.name)
		}
		c.reach = reach{stream: tt.stream, wide: tt.wide, promised: promised}
		if tt.room > 0 {
			c.reach.promised = room - tt.room
		}
		before, s := c.reach.promised, &stream{plan: kept{LongRunning: tt.long}}
		h := &half{full: first + tt.extra, credit: tt.credit, q: queue{size: int(tt.queued)}}
		c.fit(s, h)
		check.Same(t, tt.want, h.full-first, "%s: extra window", tt.name)
		check.Same(t, tt.want-tt.extra, h.credit-tt.credit, "%s: credit", tt.name)
		check.Same(t, int64(tt.want-tt.extra), c.reach.promised-before, "%s: promised on the connection", tt.name)
		if !tt.taken {
			check.Same(t, false, r.e.Memory.Promise(2*room-int64(tt.want-tt.extra)+1), "%s: more than all is promised in the process", tt.name)
		}
	}
}

// The first of the streams that get credit is measured, if its receiver keeps up.
func TestMeasuredStream(t *testing.T) {
	r := newRig(t)
	c := r.client().c
	for _, tt := range []struct {
		id   uint32
		h    half
		want int32
	}{
		{3, half{full: 100}, 0},
		{1, half{full: 100, q: queue{size: 51}}, 0},
		{1, half{full: 100, discard: true}, 0},
		{1, half{full: 100, q: queue{size: 50}}, 100 * growth},
	} {
		c.reach = reach{}
		c.credited(1, 10)
		c.credited(3, 10)
		r.e.now += 2 * near
		c.streamReceived(tt.id, &tt.h, 9)
		check.Same(t, 0, c.reach.stream, "stream %d, window of all with a byte left", tt.id)
		c.streamReceived(tt.id, &tt.h, 1)
		check.Same(t, tt.want, c.reach.stream, "stream %d, window of all", tt.id)
	}
}

func TestWindowsGrowWithDistance(t *testing.T) {
	for _, distance := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		for _, streams := range []int{1, 20} {
			name := fmt.Sprintf("%v, %d streams", distance, streams)
			n := 64 << 20 / min(streams, 2) // each
			t.Run("from a backend, "+name, func(t *testing.T) {
				r, c, b := downloads(t, streams)
				got := b.rounds(distance, streams, n, true, b.download(c))
				check.Within(t, 0, (n/goWindow+1)*10/9, got, "round trips")
				check.Same(t, r.e.lim.backendWindow, b.c.recv+b.c.credit, "the backend's window")
			})
			t.Run("from a client, "+name, func(t *testing.T) {
				r, c := newClient(t)
				for i := range streams {
					id := uint32(2*i + 1)
					c.request(id, "POST", false)
					r.backend(0).say("WINDOW %d %d", id, 1<<30)
				}
				b := r.backend(0)
				b.say("WINDOW 0 %d", 1<<30)
				n := n / 2
				got := c.rounds(distance, streams, n, true, func(id uint32, n int) {
					c.upload(id, n)
					b.from.Reset()
					c.from.Reset()
				})
				check.Within(t, 0, streams*n/goServer*2/3, got, "round trips")
				check.Same(t, widest, c.c.reach.conn, "the client's window")
				check.Same(t, widest, c.c.recv+c.c.credit, "the client's window, with the credit")
			})
		}
	}
}

func downloads(t *testing.T, streams int, change ...func(*Engine)) (r *rig, c, b *peer) {
	r, c = newClient(t, change...)
	c.say("WINDOW 0 %d", 1<<30)
	for i := range streams {
		id := uint32(2*i + 1)
		c.get(id)
		c.say("WINDOW %d %d", id, 1<<30)
		b = r.backend(0)
		b.say("HEADERS %d :status=200", id)
	}
	return r, c, b
}

func (p *peer) download(to *peer) func(id uint32, n int) {
	return func(id uint32, n int) {
		for n > 0 {
			k := min(n, minMaxFrame)
			_ = p.fr.WriteData(id, false, make([]byte, k))
			p.flush()
			n -= k
		}
		p.from.Reset()
		to.from.Reset()
	}
}

// Windows do not grow if the peer is near, the receiver is slow, or there is no room. A wide one
// shrinks again at rest, without revoking credit.
func TestWindowsStayNarrow(t *testing.T) {
	full := func(b *peer) int32 { return b.c.streams[1].half[down].full }
	t.Run("near", func(t *testing.T) {
		_, c, b := downloads(t, 1)
		b.rounds(near/2, 1, 16<<20, false, b.download(c))
		check.Same(t, streamWindow, full(b), "window")
	})
	t.Run("slow reader", func(t *testing.T) {
		_, c, b := asked(t)
		b.say("HEADERS 1 :status=200")
		b.rounds(50*time.Millisecond, 1, 4<<20, false, func(id uint32, n int) {
			c.say("WINDOW 0 %d", 64<<10)
			c.say("WINDOW %d %d", id, 64<<10)
			b.download(c)(id, n)
		})
		check.Within(t, streamWindow, growth*streamWindow, full(b), "window") // the first burst was not slowed down
	})
	t.Run("no room", func(t *testing.T) {
		_, c, b := downloads(t, 20, func(e *Engine) { e.Memory = hold.New(8 << 20) })
		b.rounds(50*time.Millisecond, 20, 4<<20, false, b.download(c))
		check.Within(t, 1, 2<<20, b.c.reach.promised, "bytes promised")
	})
	t.Run("rest", func(t *testing.T) {
		r, c, b := downloads(t, 1)
		b.rounds(50*time.Millisecond, 1, 32<<20, false, b.download(c))
		wide := full(b)
		check.Same(t, int64(wide-streamWindow), b.c.reach.promised, "bytes promised")
		check.Same(t, true, wide >= 4<<20, "a wide window: %d", wide)
		b.pong() // otherwise it is silent
		for range 7 {
			r.tick(time.Second)
			b.pong()
		}
		h := &b.c.streams[1].half[down]
		check.Same(t, wide, h.recv+h.credit, "bytes that may be sent, of those promised")
		b.rounds(far+time.Millisecond, 1, int(wide), false, b.download(c)) // as much as a slow watch sends in days
		check.Same(t, [2]int32{streamWindow, streamWindow}, [2]int32{full(b), h.recv + h.credit}, "window after a rest, and what may be sent")
		check.Same(t, 0, b.c.reach.promised, "bytes promised after it")
	})
	t.Run("end", func(t *testing.T) {
		r, c, b := downloads(t, 2)
		b.rounds(50*time.Millisecond, 2, 32<<20, false, b.download(c))
		check.Same(t, 2, b.c.reach.wide, "wide windows")
		b.data(1, "", true)
		c.say("RST 3 CANCEL")
		check.Same(t, 0, b.c.reach.promised, "bytes still promised")
		check.Same(t, 0, b.c.reach.wide, "wide windows after the end")
		r.clean()
	})
}
