package backend

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

const (
	// dialTimeout bounds resolving, connecting and TLS together. A SYN is sent again after 1 s and 3 s: two may get lost. It must stay below the 5 s in which a
	// blackholed host is to be noticed.
	dialTimeout = 4 * time.Second
	// dialPause is for how long a failed dial answers for those that follow: a refusing endpoint gets at most ten dials a second.
	dialPause = 100 * time.Millisecond
	// defaultPing is within how long a dead connection is noticed when the policy does not say.
	defaultPing = 5 * time.Second
	// watchGrace is how long a watch goes on after the trust of its connection has ended: it must be gone within 5 s, and noticing takes up to one.
	watchGrace = 4 * time.Second
)

// endpoint is one address of an Upstream, and what was dialled to it.
type endpoint struct {
	up      *Upstream
	address string
	frames  atomic.Pointer[h2.Endpoint] // the endpoint as the engine knows it. Nil: no request was sent there since its last connection drained
	// inFlight counts the Leases.
	inFlight  atomic.Int64
	suspicion suspicion
	// out says that the endpoint is unhealthy while others are not. It is set before verdict ends.
	out atomic.Bool
	// via is the carrier's endpoint, whose HTTP/2 connections carry the requests. Nil: its own do. Set by Pools.mu.
	via atomic.Pointer[endpoint]

	// mu guards what follows. It is never held over I/O.
	mu      sync.Mutex
	plain   *plain // connections over HTTP/1.1. Nil: there was none since the last recall
	removed bool
	// changed is closed when connections made before must take no new request; another takes its place.
	changed chan struct{}
	// verdict ends, by eject, when the endpoint is found unhealthy while others are not; another takes its place.
	verdict context.Context
	ejected context.CancelFunc
}

func newEndpoint(u *Upstream, address string) *endpoint {
	e := &endpoint{up: u, address: address, changed: make(chan struct{})}
	e.verdict, e.ejected = context.WithCancel(context.Background())
	return e
}

// state is the verdict, which ends when the endpoint may have become unhealthy while others are not, and whether it is so now.
func (e *endpoint) state() (verdict context.Context, out bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.verdict, e.out.Load() // verdict ends under the mutex, and after out was set: nothing is missed
}

// lost makes the endpoint the worse choice until a probe has looked.
func (e *endpoint) lost() { e.suspicion.doubt(e.up.target.doubt) }

// recall lets connections finish their requests and take no new one.
func (e *endpoint) recall() {
	e.mu.Lock()
	if !e.removed { // else changed is closed for good
		close(e.changed)
		e.changed = make(chan struct{})
	}
	old := e.plain
	e.plain = nil
	e.mu.Unlock()
	old.retire()
}

// remove does so for an endpoint that is gone for good.
func (e *endpoint) remove() {
	e.mu.Lock()
	if !e.removed {
		e.removed = true
		close(e.changed)
	}
	old := e.plain
	e.plain = nil
	e.mu.Unlock()
	old.retire()
}

// eject tells of an endpoint that is unhealthy while others are not.
func (e *endpoint) eject() {
	if ep, engine := e.frames.Load(), e.up.owner.serving(); ep != nil && engine != nil {
		e.up.owner.spawn(func() { engine.Eject(ep) }) // short
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ejected()
	e.verdict, e.ejected = context.WithCancel(context.Background())
}
