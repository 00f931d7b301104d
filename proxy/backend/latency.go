package backend

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latencies count requests by how long they took, in powers of two of a microsecond: fine enough for a percentile that people look at, and one addition for
// a request. The last one holds all that took more than two minutes.
type latencies [28]atomic.Uint64

func (l *latencies) observe(d time.Duration) {
	us := uint64(max(d, 0) / time.Microsecond)
	l[min(bits.Len64(us), len(l)-1)].Add(1)
}

// Finish notes how long a request took that was answered by an endpoint and is not long-running, from its arrival to its last byte. It never waits and does
// not allocate.
func (u *Upstream) Finish(took time.Duration) {
	u.meter.phase(phaseTotal, took)
	u.meter.latencies.observe(took)
}

// Latencies are how many requests have taken how long since the Upstream was made: element i counts those of less than 2^i µs, less those before it.
func (u *Upstream) Latencies() []uint64 {
	out := make([]uint64, len(u.meter.latencies))
	for i := range out {
		out[i] = u.meter.latencies[i].Load()
	}
	return out
}
