// Package backend chooses and dials the endpoints of extension servers and of the local apiserver, and limits requests.
//
// An Upstream is a set of endpoints with one trust: the backend of an APIService (Pools), or a pool of the local
// apiserver (Local). HTTP/2 requests are forwarded by the engine of proxy/h2, which owns its connections; this package
// chooses and dials for it (Plan). HTTP/1.1 requests are forwarded here (RoundTrip), by an http.Transport for each.
//
// The concurrency rule: requests choose endpoints from an immutable view, which is swapped as a whole. No mutex is held
// during I/O. The goroutines that watch connections end with the Run of the Pools or the Local.
//
// This package does not decide where a request goes, changes no header fields, writes no responses,
// and does not probe. It reports the failures of live traffic to health, which probes.
package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"hash/maphash"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Upstream is a set of endpoints with one trust. It is safe for concurrent use, until Run of its Pools or Local ends.
type Upstream struct {
	name      string // of the APIService or the local pool; labels metrics
	pool      Pool   // of the local apiserver, else zero
	target    target
	shared    *shared
	meter     meter
	forEngine engine.Upstream
	// reporter is the member that counts a carrier's dials and signals its failures. Nil means the Upstream itself.
	reporter atomic.Pointer[remote]

	view  atomic.Pointer[view]
	picks atomic.Uint64
	took  atomic.Int64 // the last dial that succeeded, in nanoseconds
	// agreed is what the last connection that offered HTTP/2 agreed on by ALPN, perhaps nothing. Nil: there was none.
	agreed   atomic.Pointer[string]
	learning singleflight.Group
	// carrier has the HTTP/2 connections of this Upstream's Backend. Nil means that it has its own,
	// or that the backend speaks HTTP/1.1. Set with Pools.mu held.
	carrier atomic.Pointer[carrier]

	inFlight, longRunning bound.Places
	reads, writes         bound.Places   // the places that Share gives
	budget, budgetApart   budget.Retries // for retries, and for those of requests that Plan sends apart

	mu        sync.Mutex // guards endpoints and orders changes of view. It is never held during I/O
	endpoints map[string]*endpoint
}

// target describes how to reach the endpoints of an Upstream. newRemote, newCarrier and newPool make one from a Config,
// which says what the first five do. They are never nil.
type target struct {
	tls     func() (*tls.Config, error)
	guard   func(chain []*x509.Certificate) (lost <-chan struct{}, release func())
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	signal  func(address string, err error)
	observe func(address string, took time.Duration)
	// protocols are offered by ALPN. A server that selects none speaks HTTP/1.1, if that is one of
	// them. Nil for a carrier, of which only HTTP/2 is asked.
	protocols func() []string
	maxConns  int                  // limits the connections to an endpoint over HTTP/1.1
	wait      func() time.Duration // how long a request waits if no endpoint can be reached. Nil for a carrier
}

// shared is the state that all upstreams of a Pools or a Local share.
type shared struct {
	ctx      context.Context // ends with Run, as all dials and connections do
	cancel   context.CancelFunc
	log      *slog.Logger
	buffered bound.Places // bytes of held request bodies
	memory   *hold.Bound  // counts held bodies and heads, too
	dialled  sync.Map     // *tls.Conn of the engine → *Conn
	seed     maphash.Seed // of endpoints' hashes: the same address has the same one for all APIServices

	engine atomic.Pointer[h2.Server] // not the engine.Engine of one shard; nil until SetEngine

	mu      sync.Mutex // guards the fields below. After stopped is set, nothing is added to running
	stopped bool
	running sync.WaitGroup // dials, watched and closing connections
}

// SetEngine sets the engine.
func (o *shared) SetEngine(s *h2.Server) { o.engine.Store(s) }

func (o *shared) spawn(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		go f() // this late, f only closes something
		return
	}
	o.running.Go(f)
}

func (o *shared) stop() {
	o.cancel()
	o.mu.Lock()
	o.stopped = true
	o.mu.Unlock()
	o.running.Wait()
}

func newShared(log *slog.Logger, memory *hold.Bound) *shared {
	// The context is not the caller's: it must last from New, since requests may come before Run.
	ctx, cancel := context.WithCancel(context.Background())
	return &shared{ctx: ctx, cancel: cancel, log: log, memory: cmp.Or(memory, hold.New(0)), seed: maphash.MakeSeed()}
}

func newUpstream(name string, o *shared, t target) *Upstream {
	u := &Upstream{name: name, target: t, shared: o, endpoints: make(map[string]*endpoint)}
	u.forEngine = engine.Upstream{Pick: u.pick, Retried: u.meter.retry}
	for _, places := range []*bound.Places{&u.inFlight, &u.longRunning, &u.reads, &u.writes} {
		places.Lend = true // one controller may be the only client of an extension server
	}
	u.budget.Init(&u.meter.exhausted)
	u.budgetApart.Init(&u.meter.exhausted)
	u.view.Store(&view{})
	return u
}

// take chooses an endpoint, and counts a request there until release: that of a client connection, without one the less
// loaded of two random healthy ones, and none of avoid if possible. It returns nil if there is no endpoint at all.
func (u *Upstream) take(by *Stay, avoid ...*endpoint) *endpoint {
	v := u.view.Load()
	var e *endpoint
	switch {
	case by != nil && u.pool != 0:
		e = by.pick(u, avoid)
	case len(avoid) > 0:
		e = v.other(avoid)
	}
	if e == nil {
		e = v.choose(u.picks.Add(1), by)
	}
	if e != nil {
		e.inFlight.Add(1)
	}
	return e
}

// Acquire takes a place among the requests in flight, or among the long-running ones, for a request
// that is ready to be sent. It reports false at the limit of the APIService's policy, or at the
// share of from. Otherwise the caller must give the place back when the request has ended.
func (u *Upstream) Acquire(from bound.Source, longRunning bool) (place bound.Place, ok bool) {
	limit, places, most := u.limit(longRunning)
	if place, ok = places.Take(from, 1, most); !ok {
		u.meter.refuse(limit, from)
	}
	return place, ok
}

// Room reports whether Acquire would give from a place now. It counts nothing.
func (u *Upstream) Room(from bound.Source, longRunning bool) bool {
	_, places, most := u.limit(longRunning)
	return places.Room(from, most)
}

// Share returns the places among the reads or writes of this backend: its share of a limit of the whole server, so that
// a slow backend cannot use all of it; one source leaves some of that to others. They are taken in addition to Acquire.
func (u *Upstream) Share(write bool) *bound.Places {
	if write {
		return &u.writes
	}
	return &u.reads
}

// update applies a new view: it adds new endpoints, and drains removed ones. It reports whether any were removed.
func (u *Upstream) update(v *view, list []registry.Endpoint) (fewer bool) {
	u.mu.Lock()
	seen, known := make(map[string]bool, len(list)), len(u.endpoints)
	var ejected, removed []*endpoint
	for i := range list {
		seen[list[i].Address] = true
		u.provideLocked(list[i].Address)
	}
	v.arrange(list, u.endpoints)
	u.view.Store(v) // swap before draining: a new choice must not return a removed endpoint
	if was := u.agreement().Load(); (len(u.endpoints) > known || len(seen) < known) && was != nil && *was != "h2" {
		u.agreement().CompareAndSwap(was, nil) // a new endpoint may speak HTTP/2, or all that are left
	}
	for i := range list {
		e := u.endpoints[list[i].Address]
		e.unhealthy = list[i].Health == registry.Unhealthy
		e.hung.Store(list[i].Hung)
		if out := e.unhealthy && v.usable; !e.out.Swap(out) && out {
			ejected = append(ejected, e)
		}
	}
	for address, e := range u.endpoints {
		if !seen[address] {
			delete(u.endpoints, address)
			e.out.Store(true)         // nobody stays
			e.hung.Store(e.unhealthy) // nobody probes it any more
			removed = append(removed, e)
		}
	}
	u.mu.Unlock()
	for _, e := range removed {
		e.drain(true)
	}
	for _, e := range ejected {
		e.eject()
	}
	return len(removed) > 0
}

// drain lets all connections finish their requests and take no new ones: the identity or the protocol has changed.
func (u *Upstream) drain() {
	for _, e := range u.snapshot() {
		e.drain(false)
	}
}

func (u *Upstream) snapshot() []*endpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.endpoints))
}
