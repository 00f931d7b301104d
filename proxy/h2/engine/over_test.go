package engine

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

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
