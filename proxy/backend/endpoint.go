package backend

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// dialTimeout limits resolving, connecting and TLS together. A SYN is resent after 1 s and 3 s, so two may get
	// lost. It must stay below 5 s, within which an unreachable host must be noticed.
	dialTimeout = 4 * time.Second
	noProtocol  = "tls: no application protocol" // RFC 7301 §3.2: crypto/tls exports neither type nor number
	// dialPause is how long later dials return a failed one's error: a refusing endpoint gets ten dials a second.
	dialPause   = 100 * time.Millisecond
	defaultPing = 5 * time.Second // the time to notice a dead connection if the policy has none
	watchGrace  = 4 * time.Second // of a watch on a connection without trust: of 5 s, noticing takes up to 1 s
)

// endpoint is one address of an Upstream, with its connections.
type endpoint struct {
	up        *Upstream
	address   string
	hash      uint64                          // of address
	server    *localServer                    // of a local apiserver, else nil
	inEngine  atomic.Pointer[engine.Endpoint] // nil if no request was sent since its last connection drained
	said      atomic.Pointer[string]          // the last GOAWAY with an error, and when it came; nil if none has
	saidAt    atomic.Pointer[time.Time]       // when one was last logged; nil means never
	inFlight  atomic.Int64                    // the requests that have taken the endpoint
	suspicion suspicion
	out       atomic.Bool // it is unhealthy while others are not. Set before verdict ends
	hung      atomic.Bool // its process does not run, or it was unhealthy when it left the table
	unhealthy bool        // by the last table; guarded by up.mu
	// via is the carrier's endpoint, whose HTTP/2 connections carry requests. Nil: it has its own. Set under Pools.mu.
	via   atomic.Pointer[endpoint]
	gone  context.Context // canceled by drain, with mu held
	leave context.CancelFunc

	mu      sync.Mutex      // guards the fields below. It is never held during I/O
	plain   *plain          // HTTP/1.1 connections; nil if there are none since the last drain
	changed chan struct{}   // closed by drain: older connections must take no new requests. It is then replaced
	verdict context.Context // canceled by eject, when it becomes unhealthy while others are not. It is then replaced
	ejected context.CancelFunc
}

// host returns the Host of requests to the endpoint that have no other.
func (e *endpoint) host() string { return reach.Host(e.address) }

func newEndpoint(u *Upstream, address string) *endpoint {
	e := &endpoint{up: u, address: address, hash: maphash.String(u.shared.seed, address), changed: make(chan struct{})}
	e.verdict, e.ejected = context.WithCancel(context.Background())
	e.gone, e.leave = context.WithCancel(context.Background())
	return e
}

// lost makes the endpoint suspect until a probe has judged it.
func (e *endpoint) lost() { e.suspicion.doubted.Store(new(time.Now())) }

// failed has the endpoint probed. A lost connection also makes it suspect, unless nothing was sent on it. A failed dial
// is dialOwned's to judge; those who share it only learn of it.
func (e *endpoint) failed(err error, idle bool) {
	switch _, dial := errors.AsType[*dialError](err); {
	case ours(err), dial && e.via.Load() == nil:
		return
	case idle && errors.Is(err, io.EOF): // it may close those that are not used
		err = errIdle
	case !dial:
		e.lost()
	}
	e.up.target.signal(e.address, err)
}

func (e *endpoint) tell(g *engine.GoAway) {
	const sayAgain = 10 * time.Second // the time between lines of log about an endpoint's GOAWAYs: users cause them
	now, was := time.Now(), e.saidAt.Load()
	e.said.Store(new(now.UTC().Format(time.RFC3339) + " " + g.Error()))
	if (was == nil || now.Sub(*was) >= sayAgain) && e.saidAt.CompareAndSwap(was, &now) {
		e.up.shared.spawn(func() { // a line is I/O
			e.up.shared.log.Warn("a backend has ended a connection with an error",
				"backend", e.up.name, "endpoint", e.address, "err", g)
		})
	}
}

// drain lets connections finish their requests and take no new ones. If the endpoint is gone for
// good, it also ends dials to it: the requests that wait for them choose again.
func (e *endpoint) drain(gone bool) {
	e.mu.Lock()
	if e.gone.Err() == nil { // otherwise changed stays closed
		close(e.changed)
		if gone {
			e.leave()
		} else {
			e.changed = make(chan struct{})
		}
	}
	old := e.plain
	e.plain = nil
	e.mu.Unlock()
	old.retire()
}

// eject cancels requests to an endpoint that became unhealthy while others are not.
func (e *endpoint) eject() {
	if server := e.up.shared.engine.Load(); server != nil {
		e.up.shared.spawn(func() { server.Eject(e.forEngine()) }) // short
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ejected()
	e.verdict, e.ejected = context.WithCancel(context.Background())
}

const (
	slowEvery = 128 // the share of all slow endpoints: one request in 128, below 1 %, is enough to notice a recovery
	// slowDial is when an unfinished dial makes its endpoint suspect: far above a handshake between
	// neighboring continents, far below dialTimeout.
	slowDial = 250 * time.Millisecond
	// suspicionTime is how long an endpoint stays suspect after a failed dial, doubtTime after a lost connection: its
	// server may not be ready yet. The probe that Signal requests usually ends both earlier.
	suspicionTime, doubtTime = time.Second, 10 * time.Second
	suspicionWeight          = 1 << 20 // added to a suspect endpoint's load: more than limits allow in flight
)

// suspicion makes an endpoint the worse choice until health has judged it: one that cannot be dialed, or that has lost
// a connection, so that its server may not be ready. It ejects no endpoint: if all are suspect, nothing changes.
type suspicion struct {
	dialing atomic.Pointer[time.Time] // start of the dial in progress; nil means none
	failed  atomic.Pointer[time.Time] // time of the last dial if it failed; nil means that it succeeded
	doubted atomic.Pointer[time.Time] // time of the last lost connection; nil means none
}

// weight returns the addition to the endpoint's load.
func (s *suspicion) weight() int64 {
	if s.failing() || s.dialsLong() {
		return suspicionWeight
	}
	return 0
}

func (s *suspicion) dialsLong() bool {
	since := s.dialing.Load()
	return since != nil && time.Since(*since) > slowDial
}

// failing reports whether there is more than a dial that takes long.
func (s *suspicion) failing() bool {
	failed, doubted := s.failed.Load(), s.doubted.Load()
	return doubted != nil && time.Since(*doubted) < doubtTime || failed != nil && time.Since(*failed) < suspicionTime
}

// judged ends what was suspected before a probe began.
func (s *suspicion) judged(began time.Time) {
	for _, of := range []*atomic.Pointer[time.Time]{&s.failed, &s.doubted} {
		if t := of.Load(); t != nil && t.Before(began) {
			of.CompareAndSwap(t, nil)
		}
	}
}

// load returns the value by which endpoints are compared.
func (e *endpoint) load() int64 {
	n := e.suspicion.weight()
	if s := e.server; s != nil {
		if !s.first {
			n += s.clients.Load()
		}
		return n
	}
	n += e.inFlight.Load()
	if c := e.via.Load(); c != nil {
		n += c.suspicion.weight()
	}
	return n
}

// view is the set of endpoints for choosing. It is immutable.
type view struct {
	entry  *registry.Entry // of this view. Nil in the local apiserver's pools
	slow   []*endpoint     // healthy, but get few requests
	usable bool            // preferred are not unhealthy
	rest   []*endpoint     // the lower tiers, best first, for retries after preferred, without unhealthy endpoints
	// preferred is the best tier that is not empty: healthy endpoints before unprobed, terminating and unhealthy ones.
	// Not all are ejected: if every endpoint is unhealthy, they are used: the verdict decides before.
	preferred []*endpoint
	// far is the view of the healthy endpoints of other zones, for retries, and for requests that find the preferred
	// ones suspect: until probes have judged those, a zone that fails costs no request. Nil if there are none.
	far *view

	maxInFlight, maxLongRunning int64 // limits. Zero means no limit
	pingTimeout                 time.Duration
}

// tier returns the rank of an endpoint, best first. Of each rank those of other zones come last.
func tier(e *registry.Endpoint) int {
	switch {
	case e.Health == registry.Unhealthy && e.Terminating:
		return 5
	case e.Health == registry.Unhealthy:
		return 4
	case e.Terminating:
		return 3
	case e.Health == registry.Unprobed:
		return 2
	case e.Slow:
		return 1
	default:
		return 0
	}
}

// arrange sorts endpoints, in the table's order, into the tiers of v.
func (v *view) arrange(list []registry.Endpoint, known map[string]*endpoint) {
	const lastUsable = 3 // the last tier for retries
	var tiers [2 * 6][]*endpoint
	for i := range list {
		t := 2*tier(&list[i]) + int(metric.Number(list[i].Far))
		tiers[t] = append(tiers[t], known[list[i].Address])
	}
	near, far := tiers[0], tiers[1]
	if len(near)+len(far) > 0 {
		v.slow, tiers[2] = tiers[2], nil
	}
	if len(near) > 0 && len(far) > 0 {
		v.far = &view{preferred: far}
	}
	for t, endpoints := range tiers {
		switch {
		case v.preferred == nil:
			v.preferred, v.usable = endpoints, t/2 <= lastUsable
		case t/2 <= lastUsable:
			v.rest = append(v.rest, endpoints...)
		}
	}
}

// choose returns the endpoint for a request, nil for none. tick counts choices. by is its connection's; nil: spread.
func (v *view) choose(tick uint64, by *Stay) *endpoint {
	e := v.chooseNear(tick, by)
	if v.far != nil && e.load() >= suspicionWeight {
		return v.far.choose(tick, by)
	}
	return e
}

func (v *view) chooseNear(tick uint64, by *Stay) *endpoint {
	if n := uint64(len(v.slow)); n > 0 && tick%slowEvery == 0 {
		return v.slow[tick/slowEvery%n]
	}
	n := uint32(len(v.preferred)) //nolint:gosec // the number of endpoints of a Service
	switch n {
	case 0:
		return nil
	case 1:
		return v.preferred[0]
	}
	if by != nil && n <= maxOrdered {
		if e := v.own(by); e != nil {
			return e
		}
	}
	// The better of two random ones: nearly as even as the best of all, and requests do not all
	// move to an endpoint that has just become free.
	i, step := rand.Uint32N(n), 1+rand.Uint32N(n-1) //nolint:gosec // nobody gains by guessing
	a, b := v.preferred[i], v.preferred[(i+step)%n]
	if b.load() < a.load() {
		return b
	}
	return a
}

const (
	// maxOrdered is how many endpoints a connection orders: each choice looks at all. Requests to more are spread.
	maxOrdered = 32
	// spare is by how many requests an endpoint may be above the mean, if that is more than a
	// quarter. With fewer, a client's few watches would be enough to make it leave.
	spare = 8
)

// own returns a client connection's endpoint (decision 0041): the first, in an order of its own (rendezvous hashing),
// at most a quarter above the mean load. Only a busy one has a second, always the same. Nil: all are suspect.
func (v *view) own(by *Stay) (own *endpoint) {
	sum := int64(1)
	for _, e := range v.preferred {
		sum += e.inFlight.Load()
	}
	first := uint64(0)
	for n := int64(len(v.preferred)); n > 0 && own == nil; n-- { // fewer, if some are suspect
		most := max(sum*5/(n*4), sum/n+spare)
		for _, e := range v.preferred {
			if x := e.rank(by); (own == nil || x > first) && e.load() < most {
				own, first = e, x
			}
		}
	}
	return own
}

// rank returns the endpoint's place in a client connection's order: of the end of SplitMix64, each
// bit of either number changes half of the bits.
func (e *endpoint) rank(by *Stay) uint64 {
	x := by.seed ^ e.hash
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// other returns the least loaded endpoint that is not in avoid, or nil.
func (v *view) other(avoid []*endpoint) *endpoint {
	var best *endpoint
	list := v.preferred
	if v.far != nil { // this endpoint's neighbors may have failed with it
		list = slices.Concat(list, v.far.preferred)
	}
	for _, e := range list {
		if !slices.Contains(avoid, e) && (best == nil || e.load() < best.load()) {
			best = e
		}
	}
	if best != nil {
		return best
	}
	for _, e := range slices.Concat(v.slow, v.rest) {
		if !slices.Contains(avoid, e) {
			return e
		}
	}
	return nil
}

// release undoes take, once for each.
func (e *endpoint) release() { e.inFlight.Add(-1) }
