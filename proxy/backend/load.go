package backend

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Load returns the current load for the status page: requests in flight, long-running ones, and the
// requests of each endpoint by address; and the last GOAWAY with an error of those that sent one.
func (u *Upstream) Load() (inFlight, longRunning int64, endpoints map[string]int64, said map[string]string) {
	list := u.snapshot()
	endpoints, said = make(map[string]int64, len(list)), make(map[string]string)
	for _, e := range list {
		endpoints[e.address] = e.inFlight.Load()
		if s := cmp.Or(e.via.Load(), e).said.Load(); s != nil {
			said[e.address] = s.text
		}
	}
	return u.inFlight.Held(), u.longRunning.Held(), endpoints, said
}

// Stand returns how many client connections stay with a server, and the group-versions that it
// serves and another one lacks.
func (l *Local) Stand(address string) (clients int64, only []string) {
	at := l.At(address).at.Load()
	if at == nil { // meanwhile
		return 0, nil
	}
	for what, by := range *l.only.Load() {
		if what.Version != "" && what.Resource == "" && slices.Contains(by, at) {
			only = append(only, what.GroupVersion().String())
		}
	}
	slices.Sort(only)
	return at.clients.Load(), only
}

// Which returns the server that gets a request of a connection, and why.
func (l *Local) Which(s *Stay, what schema.GroupVersionResource) string {
	switch by := l.For(s, what); {
	case by != s:
		return by.at.Load().of[0].address + " (not all of them serve it)"
	case s != nil && s.at.Load() != nil:
		return s.at.Load().of[0].address + " (where this connection stays)"
	}
	return l.pools[0].view.Load().other(nil).address + " (where a new connection goes)"
}

// latencies counts requests by duration, in powers of two of a microsecond: fine enough for a
// percentile on a page, at the cost of one addition per request. The last element holds all
// requests that took more than two minutes.
type latencies [28]atomic.Uint64

func (l *latencies) observe(d time.Duration) {
	us := uint64(max(d, 0) / time.Microsecond)
	l[min(bits.Len64(us), len(l)-1)].Add(1)
}

// Finish records how long a request that is not long-running took, from its arrival to its last
// byte, if an endpoint answered it. It does not block or allocate.
func (u *Upstream) Finish(took time.Duration) {
	u.meter.phase(phaseTotal, took)
	u.meter.latencies.observe(took)
}

// Latencies returns the number of requests by duration, since the Upstream was made: element i
// counts those below 2^i µs that no earlier element counts.
func (u *Upstream) Latencies() []uint64 {
	out := make([]uint64, len(u.meter.latencies))
	for i := range out {
		out[i] = u.meter.latencies[i].Load()
	}
	return out
}
