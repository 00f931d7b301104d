package backend

import (
	"math/bits"
	"sync/atomic"
	"time"
)

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
