package engine

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// TestPoolModel applies random events to an endpoint's connections, and checks pool's promises to
// the waiting requests after each. In the end every request has an answer.
func TestPoolModel(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 16))
		r := newRig(t, func(e *Engine) { e.lim.backlogLimit = 300 })
		r.heldDial = true
		r.e.lim.maxConns = 1 + rnd.IntN(12)
		r.plan = Plan{Retries: rnd.IntN(3), Again: rnd.IntN(2) == 0, Wait: time.Duration(rnd.IntN(2)) * time.Second}
		m := &poolModel{r: r, rnd: rnd, eps: []*Endpoint{r.ep, r.endpoint("other")}[:1+rnd.IntN(2)]}
		r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
			p := r.forward(m.eps...)
			if rnd.IntN(2) == 0 { // none of them stays the better choice
				p.Forward.Pick = func(any, []*Endpoint) *Endpoint { r.inFlight++; return m.eps[rnd.IntN(len(m.eps))] }
			}
			p.LongRunning, p.Apart, p.Owner = rnd.IntN(3) == 0, rnd.IntN(4) == 0, []string{"", "ann", "bob"}[rnd.IntN(3)]
			p.Deadline = time.Duration(rnd.IntN(2)) * time.Minute
			return p, true
		}
		m.client = r.client()
		for range 300 {
			m.step()
			m.check()
			must.Be(t, !t.Failed(), "seed %d", seed)
		}
		m.end()
		r.clean()
		must.Be(t, !t.Failed(), "seed %d", seed)
	}
}

type poolModel struct {
	r      *rig
	rnd    *rand.Rand
	eps    []*Endpoint
	client *peer
	asked  uint32
}

func (m *poolModel) step() {
	r, rnd := m.r, m.rnd
	switch n := rnd.IntN(20); n {
	case 0, 1, 2, 3, 4:
		if len(m.client.c.streams) < 200 {
			m.client.request(2*m.asked+1, []string{"GET", "POST"}[n%2], true, fmt.Sprintf("x-a=%0100d", rnd.Uint64()))
			m.asked++
		}
	case 5, 6, 7:
		m.dialEnds(rnd.IntN(3) > 0)
	case 8:
		r.tick(time.Duration(rnd.IntN(1500)) * time.Millisecond)
	case 9:
		if rnd.IntN(10) == 0 {
			r.e.Eject(r.ep)
		} else if rnd.IntN(10) == 0 {
			r.e.Retire(r.ep, time.Second)
		}
		r.run()
	default:
		if len(r.backends) > 0 {
			m.backend(r.backends[rnd.IntN(len(r.backends))])
		}
	}
}

func (m *poolModel) dialEnds(well bool) {
	switch {
	case len(m.r.held) == 0:
	case well:
		m.r.dialEnds(nil)
	default:
		m.r.dialEnds(errRefused)
	}
}

func (m *poolModel) backend(b *peer) {
	rnd := m.rnd
	if b.c.closing {
		return
	}
	id := some(rnd, b, func(s *stream) bool { return !s.half[down].head })
	n := rnd.IntN(40)
	switch {
	case !b.c.started || n < 4:
		b.say("SETTINGS MAX_CONCURRENT_STREAMS=%d", uint32(rnd.IntN(6)))
	case n == 4 && rnd.IntN(3) == 0:
		b.say("GOAWAY %d ENHANCE_YOUR_CALM", max(1, b.c.maxID)-2*uint32(rnd.IntN(2))%max(1, b.c.maxID))
	case n == 4:
		b.say("GOAWAY %d NO_ERROR", max(1, b.c.maxID)-2*uint32(rnd.IntN(2))%max(1, b.c.maxID))
	case n == 5:
		m.r.e.lose(b.c, errors.New("lost"))
		m.r.run()
	case n < 12:
		b.silent = true
	case n < 16:
		b.silent = false
		b.take()
		m.r.run()
	case id != 0 && id <= b.c.maxID && b.c.streams[id] != nil && n < 24:
		b.say("RST %d REFUSED_STREAM", id)
	case id != 0 && b.c.streams[id] != nil:
		b.send(id, true, ":status=200")
	}
}

func (m *poolModel) check() {
	e := m.r.e
	for _, p := range slices.Concat(slices.Collect(maps.Values(e.pools))...) {
		if p.waiting.n == 0 {
			continue
		}
		if p.conn() != nil {
			m.r.t.Errorf("%d streams wait although a connection takes one", p.waiting.n)
		}
		most := p.e.lim.maxConns
		if p.owner != "" {
			most = 1 // of at most 12
		}
		live := slices.DeleteFunc(slices.Clone(p.conns), func(c *Conn) bool { return c.drained })
		later := len(live)+p.dialing >= most && most > 0
		for _, c := range p.conns {
			later = later || c.slots(p.expected()) > 0 || p.known && p.perConn == 0 && !c.drained
		}
		if p.dialing == 0 && p.redialAt == 0 && !later {
			m.r.t.Errorf("nothing will wake %d streams that wait; %d connections", p.waiting.n, len(p.conns))
		}
		for n := p.waiting.first; n != nil; n = n.next {
			if u := n.s.sending.until; u == 0 || u > e.now+waitTime || u < e.now-TickEvery {
				m.r.t.Errorf("a stream waits until %v at %v", u, e.now)
			}
			to := n.s.sending
			if waited := e.now - max(to.since, p.dialAt); p.dialing > 0 && !to.tired && waited > impatience+TickEvery {
				m.r.t.Errorf("a stream has waited for a dial for %v, and not looked elsewhere", waited)
			}
		}
	}
}

// end makes every dial fail and every backend silent: all waiting requests are answered in time.
func (m *poolModel) end() {
	r := m.r
	for range int((waitTime + 3*time.Second) / time.Second) {
		for len(r.held) > 0 {
			m.dialEnds(false)
		}
		for _, b := range r.backends {
			b.fr.WritePing(true, [8]byte{}) // it is alive
			b.flush()
		}
		r.tick(time.Second)
		m.check()
	}
	for _, p := range slices.Concat(slices.Collect(maps.Values(r.e.pools))...) {
		check.Same(r.t, 0, p.waiting.n, "streams that still wait")
	}
	for _, b := range r.backends {
		if !b.c.closing {
			r.lose(b, errors.New("lost"))
		}
	}
	for range 60 {
		for len(r.held) > 0 {
			m.dialEnds(false)
		}
		r.tick(time.Second)
	}
	check.Same(r.t, int(m.asked), len(r.outcomes), "requests that have ended")
}
