package engine

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

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
