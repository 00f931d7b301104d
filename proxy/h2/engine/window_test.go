package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/tests/check"
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
	check.Same(t, 3, m.received(5+far, 100), "what it took")
}

// A window grows at most to widest.
func TestWidest(t *testing.T) {
	for size, want := range map[int32]int32{widest / growth / 2: widest / 2, widest - 1: widest, widest: widest} {
		check.Same(t, want, new(reach).judge(0, 2*near, size), "what %d grows to", size)
	}
}

func TestWindowsGrowWithDistance(t *testing.T) {
	for _, distance := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		for _, streams := range []int{1, 20} {
			name := fmt.Sprintf("%v, %d streams", distance, streams)
			n := 64 << 20 / min(streams, 2) // each
			t.Run("from a backend, "+name, func(t *testing.T) {
				r := newRig(t)
				c, b := r.downloads(streams)
				got := b.rounds(distance, streams, n, true, b.download(c))
				if most := (n/goWindow + 1) * 10 / 9; got > most {
					t.Errorf("%d round trips, at most %d", got, most)
				}
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
				if most := streams * n / goServer * 2 / 3; got > most {
					t.Errorf("%d round trips, at most %d", got, most)
				}
			})
		}
	}
}

// downloads begins responses to a client that reads everything.
func (r *rig) downloads(streams int) (c, b *peer) {
	c = r.client()
	c.say("WINDOW 0 %d", 1<<30)
	for i := range streams {
		id := uint32(2*i + 1)
		c.get(id)
		c.say("WINDOW %d %d", id, 1<<30)
		b = r.backend(0)
		b.say("HEADERS %d :status=200", id)
	}
	return c, b
}

// download sends data of a response's body to a client that reads it.
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
		r := newRig(t)
		c, b := r.downloads(1)
		b.rounds(near/2, 1, 16<<20, false, b.download(c))
		check.Same(t, r.e.lim.streamWindow, full(b), "window")
	})
	t.Run("slow reader", func(t *testing.T) {
		r, c, b := asked(t)
		b.say("HEADERS 1 :status=200")
		b.rounds(50*time.Millisecond, 1, 4<<20, false, func(id uint32, n int) {
			c.say("WINDOW 0 %d", 64<<10)
			c.say("WINDOW %d %d", id, 64<<10)
			b.download(c)(id, n)
		})
		if full(b) > growth*r.e.lim.streamWindow { // the first burst was not slowed down
			t.Errorf("a window of %d", full(b))
		}
	})
	t.Run("no room", func(t *testing.T) {
		r := newRig(t)
		r.e.Memory = hold.New(8 << 20)
		c, b := r.downloads(20)
		b.rounds(50*time.Millisecond, 20, 4<<20, false, b.download(c))
		if p := b.c.reach.promised; p == 0 || p > 2<<20 {
			t.Errorf("%d bytes are promised", p)
		}
	})
	t.Run("rest", func(t *testing.T) {
		r := newRig(t)
		c, b := r.downloads(1)
		b.rounds(50*time.Millisecond, 1, 32<<20, false, b.download(c))
		wide := full(b)
		if int64(wide-r.e.lim.streamWindow) != b.c.reach.promised || wide < 4<<20 {
			t.Errorf("a window of %d, and %d are promised", wide, b.c.reach.promised)
		}
		b.pong() // otherwise it is silent
		for range 7 {
			r.tick(time.Second)
			b.pong()
		}
		h := &b.c.streams[1].half[down]
		check.Same(t, wide, h.recv+h.credit, "bytes that may be sent, of those promised")
		b.rounds(far+time.Millisecond, 1, int(wide), false, b.download(c)) // as much as a slow watch sends in days
		if full(b) != r.e.lim.streamWindow || b.c.reach.promised != 0 || h.recv+h.credit != full(b) {
			t.Errorf("a window of %d after a rest; %d may be sent, and %d are promised", full(b), h.recv+h.credit, b.c.reach.promised)
		}
	})
	t.Run("end", func(t *testing.T) {
		r := newRig(t)
		c, b := r.downloads(2)
		b.rounds(50*time.Millisecond, 2, 32<<20, false, b.download(c))
		check.Same(t, 2, b.c.reach.wide, "wide windows")
		b.data(1, "", true)
		c.say("RST 3 CANCEL")
		check.Same(t, 0, b.c.reach.promised, "bytes still promised")
		check.Same(t, 0, b.c.reach.wide, "wide windows after the end")
		r.clean()
	})
}
