package backend

import (
	"math/rand/v2"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// slowEvery is the share of slow endpoints: each gets one request of 128, a trickle below 1 % by which its recovery shows.
const slowEvery = 128

// view is what a request chooses from. It is immutable.
type view struct {
	// entry is what the view was made from. Nil in the local apiserver's pools.
	entry *registry.Entry
	// preferred is the best tier that is not empty: healthy ones before unprobed, terminating and unhealthy ones. Never ejecting all is the floor: with every endpoint
	// unhealthy, they are what there is, and the verdict decides whether a request comes this far.
	preferred []*endpoint
	// slow endpoints are healthy ones that get a trickle.
	slow []*endpoint
	// usable: preferred are not merely what is left of unhealthy ones.
	usable bool
	// rest are lower tiers, best first, for retries that have used up the preferred ones. Unhealthy endpoints are not among them.
	rest []*endpoint

	// maxInFlight and maxLongRunning are limits. Zero: none.
	maxInFlight, maxLongRunning int64
	pingTimeout                 time.Duration
}

// tier orders endpoints by how gladly they are used.
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

// lastUsable is the last tier that a retry may turn to.
const lastUsable = 3

// arrange sorts endpoints, in the order of the table, into the tiers of v.
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

// choose returns the endpoint for a request, nil when there is none. tick counts choices.
func (v *view) choose(tick uint64) *endpoint {
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
	// The better of two random ones: nearly as even as the best of all, and it does not send a herd to the one that has just become free.
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

// other returns the least loaded endpoint that is not in avoid, nil when each is.
func (v *view) other(avoid []Lease) *endpoint {
	var best *endpoint
	for _, e := range v.preferred {
		if !avoids(avoid, e) && (best == nil || e.load() < best.load()) {
			best = e
		}
	}
	if best != nil {
		return best
	}
	for _, list := range [...][]*endpoint{v.slow, v.rest} {
		for _, e := range list {
			if !avoids(avoid, e) {
				return e
			}
		}
	}
	return nil
}

func avoids(avoid []Lease, e *endpoint) bool {
	for _, l := range avoid {
		if l.e == e {
			return true
		}
	}
	return false
}

// Lease is one request's place at an endpoint: while it is held, the request counts in the endpoint's load. The zero Lease holds nothing.
type Lease struct{ e *endpoint }

// Address is the endpoint's host:port. Empty for the zero Lease.
func (l Lease) Address() string {
	if l.e == nil {
		return ""
	}
	return l.e.address
}

// Release gives the place back. It must be called once for every Lease that was picked.
func (l Lease) Release() {
	if l.e != nil {
		l.e.inFlight.Add(-1)
	}
}
