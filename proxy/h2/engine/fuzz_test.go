package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// FuzzClientBytes sends arbitrary bytes after a valid preface: no panic, no stream is left, and output is bounded.
func FuzzClientBytes(f *testing.F) {
	for _, frames := range []string{
		"GET 1 END",
		`POST 1 | RAW 1 0 8 "\x03x(3)" | HEADERS 1 x-t=1 END | RST 1 CANCEL`,
		"SETTINGS INITIAL_WINDOW_SIZE=0 HEADER_TABLE_SIZE=0 | PING pingpong | WINDOW 0 1 | GOAWAY 0 NO_ERROR",
	} {
		f.Add(newRig(f).client().bytes("%s", frames))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, c := newClient(t)
		r.feed(c.c, in)
		for _, b := range r.backends {
			if len(b.c.streams) > 0 {
				b.say("HEADERS 1 :status=200 | DATA 1 answer END")
			}
		}
		finish(r)
	})
}

// FuzzBackendBytes sends arbitrary bytes from a backend that has three requests.
func FuzzBackendBytes(f *testing.F) {
	for _, frames := range []string{
		"HEADERS 1 :status=103 | HEADERS 1 :status=200 content-length=1 | DATA 1 x END | HEADERS 3 :status=200 | HEADERS 3 x-t=1 END | RST 5 REFUSED_STREAM",
		"GOAWAY 1 NO_ERROR | PING pingpong",
	} {
		r := newRig(f)
		r.client().get(1)
		f.Add(r.backends[0].bytes("%s", frames))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newRig(t)
		r.plan.Retries, r.plan.Again = 2, true
		c := r.client()
		c.get(1)
		c.request(3, "POST", false)
		c.data(3, "body", true)
		c.request(5, "PUT", false)
		b := r.backend(0)
		r.feed(b.c, in)
		finish(r)
	})
}

func finish(r *rig) {
	r.t.Helper()
	for _, p := range r.peers {
		p.see() // the engine's output must always be well-formed
	}
	r.tick(20 * time.Second)
	for _, p := range r.peers {
		check.Within(r.t, 0, 1<<20, len(p.c.out), "bytes of output")
		r.e.lose(p.c, nil)
	}
	r.run()
	for _, p := range r.peers {
		r.e.remove(p.c)
	}
	r.clean()
}

// Random interleavings of well-formed frames from clients and backends, full and empty sockets, retries, resets,
// settings and time: nothing panics, hangs or leaks, and both sides see only well-formed frames.
func TestRandomInterleavings(t *testing.T) {
	for seed := range uint64(120) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r := newRig(t, func(e *Engine) {
			if seed%2 == 0 {
				e.lim.writeLimit, e.MaxStreams = 1000, 5
			}
		})
		r.plan.Retries, r.plan.Again = rnd.IntN(3), rnd.IntN(2) == 0
		r.plan.Deadline = time.Duration(rnd.IntN(2)) * time.Minute
		other := r.endpoint("other")
		var parked []func(Plan)
		r.decide = func(_ *wire.Head, resume func(Plan)) (Plan, bool) {
			if rnd.IntN(8) == 0 {
				parked = append(parked, resume)
				return Plan{}, false
			}
			return r.forward(r.ep, other), true
		}
		clients := []*peer{r.client(), r.client()}
		next := []uint32{1, 1}
		for range 500 {
			i := rnd.IntN(2)
			c := clients[i]
			switch rnd.IntN(14) {
			case 0, 1, 2:
				c.request(next[i], []string{"GET", "HEAD", "POST"}[rnd.IntN(3)], rnd.IntN(2) == 0)
				next[i] += 2
			case 3, 4:
				randomClient(rnd, c)
			case 5:
				randomControl(rnd, c)
			case 6:
				c.silent = !c.silent
				if !c.silent {
					c.take()
					r.run()
				}
			case 7:
				r.tick(time.Duration(rnd.IntN(500)) * time.Millisecond)
			case 8:
				if n := len(parked); n > 0 {
					parked[n-1](r.forward(r.ep, other))
					parked = parked[:n-1]
				}
			default:
				if n := len(r.backends); n > 0 {
					randomBackend(rnd, r.backends[rnd.IntN(n)])
				}
			}
		}
		for _, p := range r.peers {
			p.silent = false
			p.take()
		}
		r.run()
		for _, resume := range parked {
			resume(r.forward(r.ep))
		}
		finish(r)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// some returns the ID of a stream for which ok is true, sometimes of any stream, or 0.
func some(rnd *rand.Rand, p *peer, ok func(s *stream) bool) uint32 {
	if rnd.IntN(300) == 0 {
		return max(1, p.c.maxID-2*uint32(rnd.IntN(4)))
	}
	var ids []uint32
	for id, s := range p.c.streams {
		if ok(s) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0
	}
	slices.Sort(ids)
	return ids[rnd.IntN(len(ids))]
}

func randomClient(rnd *rand.Rand, p *peer) {
	switch id := some(rnd, p, func(s *stream) bool { return !s.half[up].end }); {
	case id == 0:
	case rnd.IntN(8) == 0:
		p.send(id, true, "x-trailer=1")
	default:
		p.data(id, string(make([]byte, rnd.IntN(16000))), rnd.IntN(3) == 0)
	}
}

func randomControl(rnd *rand.Rand, p *peer) {
	id := some(rnd, p, func(*stream) bool { return true })
	switch rnd.IntN(8) {
	case 0, 1:
		_ = p.fr.WriteWindowUpdate(0, 1+uint32(rnd.IntN(100_000)))
	case 2, 3:
		if id != 0 {
			_ = p.fr.WriteWindowUpdate(id, 1+uint32(rnd.IntN(100_000)))
		}
	case 4:
		_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(rnd.IntN(100_000))})
	case 5:
		_ = p.fr.WritePing(rnd.IntN(2) == 0, [8]byte([]byte(drainPing)))
	case 6:
		if id != 0 && rnd.IntN(3) == 0 {
			_ = p.fr.WriteRSTStream(id, http2.ErrCode(rnd.IntN(12)))
		}
	case 7:
		_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(rnd.IntN(5000))},
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(1 + rnd.IntN(10))})
	}
	p.flush()
}

func randomBackend(rnd *rand.Rand, p *peer) {
	switch n := rnd.IntN(400); {
	case n == 0:
		p.say("GOAWAY %d NO_ERROR", max(1, p.c.maxID-2*uint32(rnd.IntN(4))))
	case n == 1:
		p.r.e.lose(p.c, nil)
		p.r.run()
	case n < 100:
		randomControl(rnd, p)
	case n < 200:
		if id := some(rnd, p, func(s *stream) bool { return s.waited == 0 }); id != 0 {
			end := rnd.IntN(3) == 0
			p.send(id, end, []string{":status=200", ":status=404", ":status=103"}[rnd.IntN(2+min(1, rnd.IntN(3)))], "x-a=b")
		}
	default:
		id := some(rnd, p, func(s *stream) bool { return s.waited != 0 && !s.half[down].end && !s.noBody })
		switch {
		case id == 0:
		case n < 220:
			p.send(id, true, "x-trailer=1")
		default:
			p.data(id, string(make([]byte, rnd.IntN(16000))), n%4 == 0)
		}
	}
}
