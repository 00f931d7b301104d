package engine

import (
	"bytes"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// BenchmarkEngineGet is one GET of 1 KiB through the engine alone: it reads the client's head and
// the backend's answer, and writes both.
func BenchmarkEngineGet(b *testing.B) {
	get := engineGet()
	b.ReportAllocs()
	for b.Loop() {
		get()
	}
}

func TestEngineAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(1000, engineGet()); n > 0 {
		t.Errorf("%v allocations per request", n)
	}
}

// engineGet returns a function that performs one request. Both peers' bytes are made in advance,
// with all fields in the tables, as on a connection that has been in use.
func engineGet() func() {
	e := newEngine(defaultLimits())
	ep := &Endpoint{Name: "ep"}
	plan := Plan{Forward: &Upstream{Pick: func([]*Endpoint) *Endpoint { return ep }}}
	plan.Retries, plan.Deadline = 2, TickEvery*wheelSlots
	plan.Done = func(Outcome) {}
	plan.Remove = func(name string) bool { return name == "authorization" }
	plan.Set = []hpack.HeaderField{field("x-remote-user", "alice"), field("x-remote-group", "devs")}
	e.Memory = hold.New(0)
	e.Decide = func(*Conn, *wire.Head, func(Plan)) (Plan, bool) { return plan, true }
	client := e.AcceptClient()
	e.Feed(client, []byte(http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"))

	var frames, block bytes.Buffer
	fr, enc := http2.NewFramer(&frames, nil), hpack.NewEncoder(&block)
	request := func(id uint32) []byte {
		frames.Reset()
		block.Reset()
		for _, f := range []hpack.HeaderField{
			field(":method", "GET"), field(":scheme", "https"), field(":authority", "cluster.example"),
			field(":path", "/apis/metrics.k8s.io/v1beta1/nodes"), field("accept", "application/json"),
			field("user-agent", "kubectl/v1.36.3"), field("authorization", "Bearer 0123456789abcdef"),
		} {
			_ = enc.WriteField(f)
		}
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		_ = fr.WriteWindowUpdate(0, 1024)
		return bytes.Clone(frames.Bytes())
	}
	back := hpack.NewEncoder(&block)
	response := func(id uint32) []byte {
		frames.Reset()
		block.Reset()
		for _, f := range []hpack.HeaderField{field(":status", "200"), field("content-type", "application/json"), field("content-length", "1024")} {
			_ = back.WriteField(f)
		}
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = fr.WriteData(id, true, make([]byte, 1024))
		return bytes.Clone(frames.Bytes())
	}
	drop := func() {
		for i, c := range e.dirty {
			c.dirty, e.dirty[i] = false, nil
			e.buffers.Put(c.take())
			c.flushed()
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
	in := request(1)
	e.Feed(client, in)
	e.calls = e.calls[:0]
	backend := e.connected(e.pools[poolKey{ep: ep}])
	e.Feed(backend, []byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	out := response(1)
	e.Feed(backend, out)
	drop()
	in, out = request(3), response(3)
	e.Feed(client, in)
	e.Feed(backend, out)
	drop()
	id := uint32(5)
	return func() {
		// Only the stream's ID changes in the frames' bytes.
		putID(in, id)
		putID(out, id)
		putID(out[len(out)-1024-wire.FrameHeaderLen:], id)
		e.Feed(client, in)
		drop()
		e.Feed(backend, out)
		drop()
		id += 2
	}
}

func putID(p []byte, id uint32) {
	p[5], p[6], p[7], p[8] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
}
