package backend

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// slowEvery sets the share of a slow endpoint: one request in 128, below 1 %, is enough to notice
// its recovery.
const slowEvery = 128

// view is the set of endpoints for choosing. It is immutable.
type view struct {
	// entry is the entry of this view. Nil in the local apiserver's pools.
	entry *registry.Entry
	// preferred is the best tier that is not empty: healthy endpoints before unprobed, terminating
	// and unhealthy ones. Not all are ejected: if every endpoint is unhealthy, they are used, and
	// the verdict decides whether requests get this far.
	preferred []*endpoint
	// slow endpoints are healthy, but get few requests.
	slow []*endpoint
	// usable says that preferred are not unhealthy.
	usable bool
	// rest are the lower tiers, best first, for retries after the preferred ones. Unhealthy
	// endpoints are left out.
	rest []*endpoint

	// maxInFlight and maxLongRunning are limits. Zero means no limit.
	maxInFlight, maxLongRunning int64
	pingTimeout                 time.Duration
}

// tier returns the rank of an endpoint, best first.
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

// lastUsable is the last tier for retries.
const lastUsable = 3

// arrange sorts endpoints, in the table's order, into the tiers of v.
func (v *view) arrange(list []registry.Endpoint, known map[string]*endpoint) {
	var tiers [6][]*endpoint
	for i := range list {
		t := tier(&list[i])
		tiers[t] = append(tiers[t], known[list[i].Address])
	}
	if len(tiers[0]) > 0 {
		v.slow, tiers[1] = tiers[1], nil
	}
	for t, endpoints := range tiers {
		switch {
		case v.preferred == nil:
			v.preferred, v.usable = endpoints, t <= lastUsable
		case t <= lastUsable:
			v.rest = append(v.rest, endpoints...)
		}
	}
}

// choose returns the endpoint for a request, nil if there is none. tick counts choices. by is its
// client connection's; nil spreads requests.
func (v *view) choose(tick uint64, by *Stay) *endpoint {
	if n := uint64(len(v.slow)); n > 0 && tick%slowEvery < n {
		return v.slow[tick%slowEvery]
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
	i, j := rand.Uint32N(n), rand.Uint32N(n-1) //nolint:gosec // nobody gains by guessing
	if j >= i {
		j++
	}
	a, b := v.preferred[i], v.preferred[j]
	if b.load() < a.load() {
		return b
	}
	return a
}

const (
	// maxOrdered is how many endpoints a client connection has an order of: each choice looks at
	// all of them. Requests to more are spread.
	maxOrdered = 32
	// spare is by how many requests an endpoint may be above the mean, if that is more than a
	// quarter. With fewer, a client's few watches would be enough to make it leave.
	spare = 8
)

// own returns the endpoint of a client connection (decision 0041): the first, in an order of its
// own (rendezvous hashing), with at most a quarter more requests than the mean. So only a busy
// client has a second one, always the same. Nil means that all are suspect.
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
func (v *view) other(avoid []Lease) *endpoint {
	var best *endpoint
	for _, e := range v.preferred {
		if !slices.Contains(avoid, Lease{e}) && (best == nil || e.load() < best.load()) {
			best = e
		}
	}
	if best != nil {
		return best
	}
	for _, e := range slices.Concat(v.slow, v.rest) {
		if !slices.Contains(avoid, Lease{e}) {
			return e
		}
	}
	return nil
}

// Lease is one request's place at an endpoint: while held, it counts in the endpoint's load. The
// zero Lease holds nothing.
type Lease struct{ e *endpoint }

// Address returns the endpoint's host:port, empty for the zero Lease.
func (l Lease) Address() string {
	if l.e == nil {
		return ""
	}
	return l.e.address
}

// Release gives the place back. It must be called once for every Lease that Pick has returned.
func (l Lease) Release() {
	if l.e != nil {
		l.e.inFlight.Add(-1)
	}
}
