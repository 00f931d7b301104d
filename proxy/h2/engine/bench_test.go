package engine

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// BenchmarkEngineGet is one GET of 1 KiB through the engine alone: it reads the client's head and
// the backend's answer, and writes both.
func BenchmarkEngineGet(b *testing.B) {
	get := engineGet(b)
	b.ReportAllocs()
	for b.Loop() {
		get()
	}
}

func TestEngineAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(1000, engineGet(t)); n > 0 {
		t.Errorf("%v allocations per request", n)
	}
}

// engineGet returns a function that performs one request. Both peers' bytes are made in advance,
// with all fields in the tables, as on a connection that has been in use.
func engineGet(t testing.TB) func() {
	r := newRig(t)
	r.plan.Retries, r.plan.Deadline = 2, TickEvery*wheelSlots
	r.plan.Remove = func(name string) bool { return name == "authorization" }
	r.plan.Set = []hpack.HeaderField{field("x-remote-user", "alice"), field("x-remote-group", "devs")}
	plan := r.forward(r.ep)
	plan.Authority, plan.Done = "", func(Outcome) {}
	r.e.Decide = func(*Conn, *wire.Head, func(Plan)) (Plan, bool) { return plan, true }
	ask := func(c *peer, id uint32) []byte {
		return c.bytes(`HEADERS %d :method=GET :scheme=https :authority=cluster.example :path=/apis/metrics.k8s.io/v1beta1/nodes accept=application/json`+
			` user-agent=kubectl/v1.36.3 "authorization=Bearer 0123456789abcdef" END | WINDOW 0 1024`, id)
	}
	answer := func(b *peer, id uint32) []byte {
		return b.bytes("HEADERS %d :status=200 content-type=application/json content-length=1024 | DATA %d (1024) END", id, id)
	}
	c := r.client()
	r.feed(c.c, ask(c, 1))
	b := r.backend(0)
	r.feed(b.c, answer(b, 1))
	in, out := ask(c, 3), answer(b, 3)
	e, id := r.e, uint32(3)
	drop := func() {
		for i, c := range e.dirty {
			c.dirty, e.dirty[i] = false, nil
			c.Wrote(c.take(), nil)
		}
		e.dirty = e.dirty[:0]
		for i := range e.calls {
			if e.calls[i].done != nil {
				e.calls[i].done(e.calls[i].outcome)
			}
			e.calls[i] = call{}
		}
		e.calls = e.calls[:0]
	}
	get := func() {
		// Only the stream's ID changes in the frames' bytes.
		for _, frame := range [][]byte{in, out, out[len(out)-1024-wire.FrameHeaderLen:]} {
			binary.BigEndian.PutUint32(frame[5:], id)
		}
		e.Feed(c.c, in)
		drop()
		e.Feed(b.c, out)
		drop()
		id += 2
	}
	get() // its fields enter the engine's tables
	return get
}
