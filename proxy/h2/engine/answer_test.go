package engine

import (
	"net/http"
	"testing"

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
