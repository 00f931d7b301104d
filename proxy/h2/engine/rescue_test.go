package engine

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A panic ends the connection of the client that caused it. Others' requests go on, also on the
// same connection to a backend.
func TestPanics(t *testing.T) {
	pick := func(eps func() *Endpoint) *Upstream {
		return &Upstream{Retried: func(Reason) {}, Pick: func(any, []*Endpoint) *Endpoint { return eps() }}
	}
	for _, tt := range []struct {
		name     string
		plan     func(r *rig, p *Plan)
		answered bool // the client gets its answer despite the panic
		panics   int64
	}{
		{"deciding", func(*rig, *Plan) { panic("deciding") }, false, 1},
		{"picking an endpoint", func(_ *rig, p *Plan) { p.Forward = pick(func() *Endpoint { panic("picking") }) }, false, 1},
		{"looking at the response", func(_ *rig, p *Plan) { p.Accept = func(int, bool) http.Handler { panic("looking") } }, false, 1},
		{"saying why it failed", func(_ *rig, p *Plan) {
			p.Forward = pick(func() *Endpoint { return nil })
			p.Fail = func(Outcome) http.Handler { panic("failing") }
		}, false, 1},
		{"and when the endpoint is released", func(r *rig, p *Plan) {
			ep := &Endpoint{Name: "ep", Via: r.ep, Release: func() { panic("releasing") }}
			p.Forward = pick(func() *Endpoint { return ep })
			p.Accept = func(int, bool) http.Handler { panic("looking") }
		}, false, 2},
		{"when it has ended", func(_ *rig, p *Plan) { p.Done = func(Outcome) { panic("done") } }, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, other, b := asked(t)
			r.e.Caught = func(any, []byte) {}
			r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
				p := r.forward(r.ep)
				tt.plan(r, &p)
				return p, true
			}
			c := r.client()
			c.request(1, "POST", true)
			if b.c.streams[3] != nil {
				b.respond(3, "answer")
			}
			check.Same(t, tt.panics, r.e.Count.Panics.Load(), "panics")
			check.Same(t, !tt.answered, c.c.cut, "cut")
			check.Same(t, 1, r.e.Count.Streams.Load(), "streams left")
			b.respond(1, "fine")
			other.want("HEADERS 1 :status=200", `DATA 1 "fine" END`)
		})
	}
}

// Of the requests that move from an endpoint, only the one whose plan panics ends.
func TestPanicWhileMoving(t *testing.T) {
	r := newRig(t)
	r.e.Caught, r.heldDial = func(any, []byte) {}, true
	ep, picks := &Endpoint{Name: "ep", Via: r.ep, Release: func() {}}, 0
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
		p := r.forward(r.ep)
		p.Forward = &Upstream{Pick: func(any, []*Endpoint) *Endpoint {
			if picks++; picks == 3 {
				panic("picking")
			}
			return ep
		}}
		return p, true
	}
	first, second := r.client(), r.client()
	first.get(1)
	second.get(1)
	r.e.Eject(ep)
	check.Same(t, [2]bool{true, false}, [2]bool{first.c.cut, second.c.cut}, "cut")
	check.Same(t, 4, picks, "endpoints picked")
	check.Same(t, 1, r.e.Count.Streams.Load(), "streams left")
}

// A connection whose cleanup panics again is removed by force: nothing of it is left, and its
// streams at backends are reset.
func TestPanicWhileCleaningUp(t *testing.T) {
	r := newRig(t)
	caught := 0
	r.e.Caught = func(any, []byte) { caught++ }
	p, other := r.client(), r.client()
	p.get(1)
	p.get(3)
	other.get(1)
	b := r.backend(0)
	b.see()
	p.c.streams[1].ep = nil // makes release panic
	r.inFlight--
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { panic("deciding") }
	p.get(5)
	r.e.runCall(&call{do: func() { panic("calling") }})
	if n := r.e.Count.Panics.Load(); caught != 3 || n != 3 || !p.c.closing || !p.c.cut || len(p.c.streams) > 0 {
		t.Errorf("%d panics, %d counted; closing %v, cut %v, %d streams", caught, n, p.c.closing, p.c.cut, len(p.c.streams))
	}
	check.Same(t, 2, len(r.outcomes), "streams that ended")
	b.want("RST 1 CANCEL", "RST 3 CANCEL")
	b.respond(5, "ok")
	other.want("HEADERS 1 :status=200", `DATA 1 "ok" END`)
	check.Same(t, 0, r.e.Count.Streams.Load(), "streams left")
	r.clean()
}

// After a panic for a backend's connection none of its requests is sent again, however often it may
// be: one of them could be what caused the panic.
func TestNothingIsSentAgainAfterAPanic(t *testing.T) {
	r := newRig(t)
	r.e.Caught = func(any, []byte) {}
	r.plan = Plan{Retries: 2, Again: true, RemoveResponse: func(string) bool { panic("removing") }}
	r.client().get(1)
	r.client().get(1)
	r.backend(0).say("HEADERS 3 :status=103 link=l")
	check.Same(t, 1, r.e.Count.Panics.Load(), "panics")
	check.Same(t, 1, len(r.backends), "connections to backends")
	for _, o := range r.outcomes {
		check.Same(t, "lost 0", fmt.Sprint(o.Reason, " ", o.Retries), "outcome, retries")
	}
	check.Same(t, 2, len(r.outcomes), "requests that ended")
	r.clean()
}
