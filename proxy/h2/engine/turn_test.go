package engine

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// many returns n requests that the peer has not sent yet, the first ones of the connection.
func (p *peer) many(n int) []byte {
	for i := range n {
		p.headers(uint32(2*i+1), true, strings.Fields(okHead)...)
	}
	b := bytes.Clone(p.to.Bytes())
	p.to.Reset()
	return b
}

// A turn under the mutex ends after a fixed number of requests, however much input there is.
func TestTurnHasSoManyHeads(t *testing.T) {
	r, c := newClient(t)
	b := c.many(200)
	for _, want := range []int{64, 128, 192, 200} {
		b = r.e.Feed(c.c, b)
		if n := len(c.c.streams); n != want {
			t.Fatalf("%d requests are in progress, want %d", n, want)
		}
	}
	if len(b) > 0 {
		t.Errorf("%d bytes are left", len(b))
	}
}

// Input that waits for another turn is counted once as input, and as held while it waits.
func TestTurnsCountInputOnce(t *testing.T) {
	r, c := newClient(t)
	c.c.bytesIn = 0
	b := c.many(200)
	held := func() int { return c.c.weight - c.c.heads - len(c.c.out) - 2*c.c.inflight }
	rest := r.e.Feed(c.c, b)
	check.Same(t, len(rest), held(), "bytes that wait")
	r.feed(c.c, rest)
	if n := held(); n != 0 || c.c.bytesIn != int64(len(b)) {
		t.Errorf("%d bytes were received; %d are counted, and %d as waiting", len(b), c.c.bytesIn, n)
	}
	lost := r.client()
	r.e.Feed(lost.c, b)
	r.e.lose(lost.c, errRefused)
	check.Same(t, 0, lost.c.weight, "bytes counted of a connection that has ended")
}

// A stream without window gets no turn until it has window again.
func TestNoTurnWithoutWindow(t *testing.T) {
	r := newRig(t)
	c := r.client()
	c.get(1)
	b := r.backend(0)
	b.headers(1, false, ":status=200")
	for left := int(defaultWindow); left > 0; {
		n := min(left, minMaxFrame)
		b.data(1, strings.Repeat("x", n), false)
		left -= n
	}
	c.see()
	b.data(1, "more", false)
	if c.want(); c.c.ready.n != 0 {
		t.Errorf("%d streams are ready", c.c.ready.n)
	}
	c.grow(0, 2)
	c.grow(1, 2)
	c.want(`DATA 1 "mo"`)
}
