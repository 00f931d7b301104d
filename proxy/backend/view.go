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

// choose returns the endpoint for a request, nil if there is none. tick counts choices.
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
	for _, list := range [...][]*endpoint{v.slow, v.rest} {
		for _, e := range list {
			if !slices.Contains(avoid, Lease{e}) {
				return e
			}
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
