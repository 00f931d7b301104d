package engine

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

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
	c.grow(0, 1<<30)
	c.silent = true
	const streams = 50
	for i := range uint32(streams) {
		c.get(1 + 2*i)
	}
	if got := len(c.c.out) + c.c.inflight; got > r.e.lim.writeLimit+streams*256 || r.e.Count.Queued.Load() != 0 {
		t.Errorf("%d bytes of output, %d in queues", got, r.e.Count.Queued.Load())
	}
	c.rst(1, http2.ErrCodeCancel)
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
	if c.rst(0, http2.ErrCodeCancel); !c.c.closing || c.c.Over() {
		t.Errorf("closing: %v; the input of a closing connection must still be read", c.c.closing)
	}
}

// A plan that comes after its request has ended is not used for a later request that reuses the
// memory.
func TestLatePlan(t *testing.T) {
	r := newRig(t)
	var resume []func(Plan)
	r.decide = func(_ *wire.Head, f func(Plan)) (Plan, bool) {
		resume = append(resume, f)
		return Plan{}, false
	}
	answer := func(i int, status string) {
		resume[i](Plan{Answer: &Answer{Status: http.StatusTeapot, Fields: []hpack.HeaderField{field(":status", status)}}})
		r.run()
	}
	c := r.client()
	c.get(1)
	c.rst(1, http2.ErrCodeCancel)
	c.get(3)
	answer(0, "418")
	c.want()
	answer(1, "204")
	if got := strings.Join(c.see(), "|"); !strings.HasPrefix(got, "HEADERS 3 :status=204 ") {
		t.Errorf("the client sees %s", got)
	}
	r.clean()
}

// Answer begins with the end of the request: a slow upload is not the endpoint's fault.
func TestAnswerOfSlowUpload(t *testing.T) {
	for early, want := range map[bool]time.Duration{false: 2 * TickEvery, true: 0} {
		r := newRig(t)
		c := r.client()
		c.request(1, "POST", false)
		b := r.backend(0)
		r.tick(TickEvery)
		if early {
			b.respond(1, "")
		}
		c.data(1, "late", true)
		r.tick(2 * TickEvery)
		if !early {
			b.respond(1, "")
		}
		if got := r.outcomes[0].Answer; got != want {
			t.Errorf("answered before the end of the request: %v: %v, want %v", early, got, want)
		}
		r.clean()
	}
}
