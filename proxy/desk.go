package proxy

import (
	"context"
	"runtime"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry/bound"
)

// desk has the queues for costly decisions: long heads and certificate chains. At most half of the
// processors work on both, so that strangers cannot use all of them, and each source has its own
// queues. Chains have a queue beside that of heads: every client behind a load balancer has its
// address, and needs one turn; a stranger there may send long heads without end.
type desk struct{ heads, chains *bound.Queue }

func newDesk() desk {
	heads := bound.NewQueue(max(1, runtime.GOMAXPROCS(0)/2), maxAtDesk)
	return desk{heads: heads, chains: heads.Beside()}
}

const (
	// maxAtDesk limits the waiting decisions of each kind. One connection may use a sixteenth: 64
	// heads of 256 KB.
	maxAtDesk = 1024
	// quickHead and quickQuery limit the head that is decided on the engine's loop: 16 KiB hold a
	// token of 4 KB and three times as much again. The limit for queries is lower because selectors
	// are parsed.
	quickHead, quickQuery = 16 << 10, 1 << 10
)

// costly reports whether a head is too long to be decided on the loop.
func (h *Head) costly() bool { return h.size() > quickHead || len(h.RawQuery) > quickQuery }

// size returns the size of a head in bytes. It stops counting above quickHead. It looks at each
// field once.
func (h *Head) size() int {
	n := len(h.Path) + len(h.RawQuery)
	for i := range h.Fields {
		if n > quickHead {
			break
		}
		n += len(h.Fields[i].Name) + len(h.Fields[i].Value) + fieldCost
	}
	return n
}

// fieldCost is added to the bytes of each field, as in RFC 9113 §6.5.2.
const fieldCost = 32

// turn waits for a turn at the desk, in one of its queues.
func turn(ctx context.Context, q *bound.Queue, h *Head) (leave func(), err error) {
	leave, err = q.Enter(ctx, bound.Stranger(h.Remote))
	if err != nil {
		return nil, errBusy("the front door")
	}
	return leave, nil
}

// decideOffLoop decides a request off the loop. A long head needs a place at the desk, except while
// it waits for I/O.
func (p *Proxy) decideOffLoop(ctx context.Context, d *Decision, h *Head, c *authn.Conn) {
	if h.costly() {
		leave, err := turn(ctx, p.desk.heads, h)
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

// read returns the caller's credentials. It verifies the connection's certificates at the desk, if
// that is not done yet.
func (p *Proxy) read(ctx context.Context, h *Head, c *authn.Conn, upgrade string) (authn.Credentials, error) {
	for {
		got, known := p.cfg.Authn.Read(c, h.Fields, upgrade)
		if known {
			return got, nil
		}
		// The loop repeats only if the CAs have changed meanwhile.
		if err := p.cfg.Authn.Verify(c, func() (func(), error) { return turn(ctx, p.desk.chains, h) }); err != nil {
			return authn.Credentials{}, err //nolint:wrapcheck // an error of this package
		}
	}
}
