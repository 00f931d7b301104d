package engine

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

func TestCounters(t *testing.T) {
	r := newRig(t)
	r.plan.Again = true
	p := r.client()
	n := &r.e.Count
	p.gets(1, 9)
	b := r.backend(0)
	if n.Conns[up].Load() != 1 || n.Conns[down].Load() != 1 || n.Streams.Load() != 5 {
		t.Errorf("%d, %d connections, %d streams", n.Conns[up].Load(), n.Conns[down].Load(), n.Streams.Load())
	}
	p.rst(1, http2.ErrCodeCancel)
	b.rst(3, http2.ErrCodeInternal)
	b.send(5, true, "x=no status")
	p.send(2*250+1, false, ":method=GET", ":scheme=https", ":path=/", "connection=close")
	for _, want := range []resetCause{resetByClient, resetByBackend} {
		check.Same(t, 1, n.Resets[want].Load(), "%v: resets", want)
	}
	check.Same(t, 2, n.Resets[resetProtocol].Load(), "protocol: resets")
	b.respond(7, "7")
	b.headers(9, false, ":status=200")
	b.data(9, strings.Repeat("9", 50_000), false)
	b.data(9, strings.Repeat("9", 50_000), true) // exceeds the client's window: the rest waits
	if got := n.Queued.Load(); got < 100_000-defaultWindow || got > 100_000 {
		t.Errorf("%d bytes buffered", got)
	}
	_ = p.fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	for range budget.Burst + 1 {
		_ = p.fr.WritePing(false, [8]byte{})
	}
	p.flush()
	r.e.remove(p.c)
	if n.Received[up].Load() != 1 || n.Sent[up].Load() != 1 || n.Floods.Load() != 1 {
		t.Errorf("GOAWAY: %d received, %d sent; floods %d", n.Received[up].Load(), n.Sent[up].Load(), n.Floods.Load())
	}
	if n.Conns[up].Load() != 0 || n.Streams.Load() != 0 || n.Queued.Load() != 0 || n.Output.Load() != 0 {
		t.Errorf("left over: %d connections, %d streams, %d and %d bytes", n.Conns[up].Load(), n.Streams.Load(), n.Queued.Load(), n.Output.Load())
	}
}
