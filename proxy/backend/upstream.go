package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Upstream is one set of endpoints under one trust. Its methods may be called by any goroutine; they work until the Run of what it came from ends.
type Upstream struct {
	name   string // the APIService's, or the local pool's; labels metrics
	target target
	owner  *owner
	meter  meter
	frames h2.Upstream // the backend as the engine knows it
	// mayRetry is allowRetry, made once.
	mayRetry func() bool
	// payer is whose dials are counted, of a carrier. Nil: its own.
	payer atomic.Pointer[remote]

	view  atomic.Pointer[view]
	picks atomic.Uint64
	// agreed is what the last connection that offered HTTP/2 came to.
	agreed   atomic.Int32
	learning singleflight.Group
	// carrier is whose HTTP/2 connections carry this one's requests: its Backend's. Nil: its own.
	carrier atomic.Pointer[Upstream]

	inFlight, longRunning bound.Places
	// reads and writes count the requests that were acquired under a share of the whole server's limits.
	reads, writes atomic.Int64
	// The releases are made once, so that AcquireShare allocates nothing.
	releaseRead, releaseWrite func()
	budget                    budget

	// mu guards endpoints, and orders the changes of view. It is never held over I/O.
	mu        sync.Mutex
	endpoints map[string]*endpoint
	closed    bool
}

// target is how an Upstream's endpoints are reached.
type target struct {
	// tls makes the configuration of one connection, for the caller to change.
	tls func() (*tls.Config, error)
	// guard watches over the trust of one connection. Never nil.
	guard func(chain []*x509.Certificate) (lost <-chan struct{}, release func())
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	// signal tells health what live traffic has seen. Never nil.
	signal func(address string, err error)
	// observe tells health how fast live traffic was answered. Never nil.
	observe func(address string, took time.Duration)
	// protocols are offered by ALPN. A server that agrees to none of them speaks HTTP/1.1, if that is among them.
	protocols func() []string
	// maxConns bounds an endpoint's connections.
	maxConns int
	// doubt is how long an endpoint that has lost a connection is the worse choice, unless a probe judges it before.
	doubt time.Duration
	// wait is for how long a request waits for any endpoint to come back. Zero: not at all.
	wait time.Duration
}

// owner is what the upstreams of one Pools or Local share.
type owner struct {
	ctx      context.Context // ends with Run: no dial or connection outlives it
	cancel   context.CancelFunc
	log      *slog.Logger
	buffered bound.Places       // bytes of request bodies that are held
	grant    func(n int64) bool // Config.Hold; may be nil
	dialled  sync.Map           // *tls.Conn of the engine's → *Conn

	// mu guards what follows; stopped, so that nothing joins running once it is waited for.
	mu      sync.Mutex
	engine  *h2.Server // nil: nobody serves yet
	stopped bool
	running sync.WaitGroup // dials, watched connections, closing ones
}

// spawn runs f in a goroutine that stop waits for.
func (o *owner) spawn(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		go f() // what comes this late only closes something
		return
	}
	o.running.Go(f)
}

// serving is the engine. Nil: there is none yet.
func (o *owner) serving() *h2.Server {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.engine
}

func (o *owner) serve(s *h2.Server) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.engine = s
}

// stop ends all that was spawned.
func (o *owner) stop() {
	o.cancel()
	o.mu.Lock()
	o.stopped = true
	o.mu.Unlock()
	o.running.Wait()
}

func newOwner(log *slog.Logger) *owner {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// The context is not the caller's: it must last from New, when requests may come already, until Run has ended them.
	ctx, cancel := context.WithCancel(context.Background())
	return &owner{ctx: ctx, cancel: cancel, log: log}
}

func newUpstream(name string, o *owner, t target) *Upstream {
	u := &Upstream{name: name, target: t, owner: o, endpoints: make(map[string]*endpoint)}
	u.frames = h2.Upstream{Pick: u.pick, Retried: u.retried}
	u.mayRetry = u.allowRetry
	u.inFlight.Lend, u.longRunning.Lend = true, true // one controller may be all that an extension server has for clients
	u.releaseRead = func() { u.reads.Add(-1) }
	u.releaseWrite = func() { u.writes.Add(-1) }
	u.budget.init()
	u.view.Store(&view{})
	return u
}

// Pick chooses an endpoint: the less loaded of two random healthy ones, none of avoid if that can be helped. It reports false when there is no endpoint at all.
// The caller releases the Lease when its request has ended.
func (u *Upstream) Pick(avoid ...Lease) (Lease, bool) {
	v := u.view.Load()
	var e *endpoint
	if len(avoid) > 0 {
		e = v.other(avoid)
	}
	if e == nil {
		e = v.choose(u.picks.Add(1))
	}
	if e == nil {
		return Lease{}, false
	}
	e.inFlight.Add(1)
	return Lease{e}, true
}

// Acquire takes a place among the requests in flight, or among the long-running ones, for a request that is ready to be sent. It
// reports false when they are as many as the APIService's policy allows, or as from may have of them. Otherwise the place is given
// back when the request has ended.
func (u *Upstream) Acquire(from bound.Source, longRunning bool) (place bound.Place, ok bool) {
	v := u.view.Load()
	places, limit := &u.inFlight, v.maxInFlight
	if longRunning {
		places, limit = &u.longRunning, v.maxLongRunning
	}
	if place, ok = places.Take(from, 1, limit); !ok {
		u.meter.reject(longRunning)
	}
	return place, ok
}

// AcquireShare takes a place among the reads or the writes of this backend, of which there may be limit: its share of a limit of the whole server, so that a slow
// backend cannot use up all of it. It is used like Acquire, and beside it.
func (u *Upstream) AcquireShare(write bool, limit int64) (release func(), ok bool) {
	count, release := &u.reads, u.releaseRead
	if write {
		count, release = &u.writes, u.releaseWrite
	}
	if count.Add(1) > limit {
		count.Add(-1)
		u.meter.reject(false)
		return nil, false
	}
	return release, true
}

// update follows the table: new endpoints come, those that are gone finish their requests and close. It reports whether some are gone.
func (u *Upstream) update(v *view, list []registry.Endpoint) (fewer bool) {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return false
	}
	seen := make(map[string]bool, len(list))
	var ejected, removed []*endpoint
	for i := range list {
		address := list[i].Address
		seen[address] = true
		e := u.endpoints[address]
		if e == nil {
			e = newEndpoint(u, address)
			if c := u.carrier.Load(); c != nil {
				e.via.Store(c.provide(address))
			}
			u.endpoints[address] = e
			u.spoken().CompareAndSwap(agreedHTTP1, 0) // what comes new may be able to do more
		}
	}
	v.arrange(list, u.endpoints)
	// Swap before anything is drained: whoever chooses again must not choose what is going.
	u.view.Store(v)
	for i := range list {
		e, out := u.endpoints[list[i].Address], list[i].Health == registry.Unhealthy && v.usable
		if !e.out.Swap(out) && out {
			ejected = append(ejected, e)
		}
	}
	for address, e := range u.endpoints {
		if !seen[address] {
			delete(u.endpoints, address)
			removed = append(removed, e)
		}
	}
	u.mu.Unlock()
	for _, e := range removed {
		e.remove()
	}
	for _, e := range ejected {
		e.eject()
	}
	return len(removed) > 0
}

// drain lets every connection finish its requests and take no new one: another identity, or another protocol, is to be used from now on.
func (u *Upstream) drain() {
	for _, e := range u.snapshot() {
		e.recall()
	}
}

// close ends an Upstream that the table no longer names. Requests finish.
func (u *Upstream) close() {
	u.mu.Lock()
	u.closed = true
	u.view.Store(&view{})
	u.mu.Unlock()
	for _, e := range u.snapshot() {
		e.remove()
	}
}

func (u *Upstream) snapshot() []*endpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.endpoints))
}
