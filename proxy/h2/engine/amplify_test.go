package engine

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// amplify sends a request with a field of the table, times over: few bytes that decode to many.
func (p *peer) amplify(id uint32, times int) int {
	block := p.encode(asHead()...)
	for range times {
		block = append(block, 0x80|62) // the newest entry
	}
	_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true, EndHeaders: true})
	n := p.to.Len()
	p.flush()
	return n
}

// Small heads that decode to large ones cannot cause unlimited connections or output: not to a
// backend that reads nothing, and not from many connections.
func TestAmplifiedHeads(t *testing.T) {
	r := newRig(t)
	r.plan.Retries = 2
	sent, ended := 0, 0
	for range 10 {
		c := r.client()
		c.get(1, "x-large="+strings.Repeat("v", 3900))
		for id := uint32(3); id < 600 && !c.c.closing; id += 2 {
			sent += c.amplify(id, 57)
			for _, b := range r.backends {
				if !b.c.started {
					b.takes(250)
				}
				b.silent = true
			}
		}
		if c.c.closing {
			ended++
		}
	}
	out := 0
	for _, b := range r.backends {
		out += len(b.c.out)
	}
	t.Logf("%d bytes, %d connections, %d MiB", sent, len(r.backends), out>>20)
	if len(r.backends) > 1 || out > r.e.lim.backlogLimit+r.e.lim.maxHeader {
		t.Errorf("%d bytes of heads made %d connections with %d bytes of output", sent, len(r.backends), out)
	}
	if ended != 10 {
		t.Errorf("%d connections were ended", ended)
	}
}

// long sends a request with a head of 200 KiB.
func (p *peer) long(id uint32) {
	p.continued(id, p.encode(asHead("x-large="+strings.Repeat("{", 200<<10))...), minMaxFrame)
}

// The unanswered heads of a connection are bounded, even without compression.
func TestUnansweredHeads(t *testing.T) {
	r, c := newClient(t)
	refused := uint32(0)
	for id := uint32(1); id < 60; id += 2 {
		c.long(id)
		if refused == 0 && c.c.wasReset(id) {
			refused = id
		}
	}
	if got := 200 << 10 * int(refused-1) / 2; refused == 0 || got > maxHeads || c.c.heads > maxHeads {
		t.Fatalf("%d streams of 200 KiB are accepted, %d bytes", (refused-1)/2, c.c.heads)
	}
	b := r.backend(0)
	b.respond(1, "")
	c.long(101)
	if c.c.wasReset(101) {
		t.Error("a stream is refused although an earlier one was answered")
	}
}

// Real clients' heads are not charged: tokens, groups, long selectors, from the table or literal.
func TestOrdinaryHeadsAreFree(t *testing.T) {
	_, c := newClient(t)
	fields := []string{"authorization=Bearer " + strings.Repeat("t", 3000), "user-agent=" + strings.Repeat("u", 300)}
	for range 60 {
		fields = append(fields, "impersonate-group="+strings.Repeat("g", 20)+string(rune('a'+len(fields)%26)))
	}
	before := c.c.budget
	for id := uint32(1); id < 200; id += 2 {
		c.get(id, fields...)
	}
	if c.c.budget != before {
		t.Errorf("budget %+v, was %+v", c.c.budget, before)
	}
}
