package proxy

import (
	"context"
	"runtime"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// newDesk makes the queue for what is dear: certificate chains and long heads. Half of the processors at most
// work on it, so that strangers do not have all of them, and each source waits behind itself.
func newDesk() *bound.Queue {
	return bound.NewQueue(max(1, runtime.GOMAXPROCS(0)/2), maxAtDesk)
}

const (
	// maxAtDesk is how many wait, a sixteenth of them from one connection: 64 heads of 256 KB.
	maxAtDesk = 1024
	// quickHead and quickQuery are what of a head is looked at on the engine's loop: 16 KiB hold a token of
	// 4 KB and three times as much besides. Queries are bounded more closely because selectors are parsed.
	quickHead, quickQuery = 16 << 10, 1 << 10
)

// dear reports whether a head is too long to be decided on the loop.
//
//fairlead:loop
func (h *Head) dear() bool { return h.size() > quickHead || len(h.RawQuery) > quickQuery }

// size is how many bytes a head has; above quickHead it says no more than that. It looks at each field once.
//
//fairlead:loop
func (h *Head) size() int {
	h.steps += len(h.Fields)
	n := len(h.Path) + len(h.RawQuery)
	for i := range h.Fields {
		if n > quickHead {
			break
		}
		n += len(h.Fields[i].Name) + len(h.Fields[i].Value) + fieldCost
	}
	return n
}

// fieldCost is what a field counts for beside its bytes, as in RFC 9113 §6.5.2.
const fieldCost = 32

// turn waits for a turn at the desk.
func (p *Proxy) turn(ctx context.Context, h *Head) (leave func(), err error) {
	leave, err = p.desk.Enter(ctx, bound.Stranger(h.Remote))
	if err != nil {
		return nil, errBusy("the front door")
	}
	return leave, nil
}

// decideDear decides what is too dear for the loop. What needs I/O goes on without a place at the desk.
func (p *Proxy) decideDear(ctx context.Context, d *Decision, h *Head, c *authn.Conn) {
	if h.dear() {
		leave, err := p.turn(ctx, h)
		if err != nil {
			d.refuse(err)
			return
		}
		known := func() bool {
			defer leave()
			return p.decide(ctx, d, h, c, false)
		}()
		if known {
			return
		}
	}
	p.decide(ctx, d, h, c, true)
}

// read says who is asking, and verifies the connection's certificates at the desk if nobody has.
func (p *Proxy) read(ctx context.Context, h *Head, c *authn.Conn, upgrade string) (authn.Credentials, error) {
	for {
		got, known := p.cfg.Authn.Read(c, h.Fields, upgrade)
		if known {
			return got, nil
		}
		// Another round comes only when the CAs have changed meanwhile.
		if err := p.cfg.Authn.Verify(c, func() (func(), error) { return p.turn(ctx, h) }); err != nil {
			return authn.Credentials{}, err //nolint:wrapcheck // our own
		}
	}
}
