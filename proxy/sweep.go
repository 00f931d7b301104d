package proxy

import (
	"sync/atomic"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
)

// sweep says when the frame lane looks for upstreams and endpoints that are gone. It does so while it adds others, whenever they may have doubled: so what is
// kept is bounded by what there is, an addition costs the same however many there are, and nobody has to listen for their end.
type sweep struct {
	added atomic.Int64 // since the last sweep
	left  atomic.Int64 // by it
}

// leastSwept is how many are added at least between two sweeps: some 100 KB.
const leastSwept = 64

// swept is told that something was added.
func (l *frameLane) swept() {
	if n := l.sweep.added.Add(1); n < max(l.sweep.left.Load(), leastSwept) {
		return
	}
	l.sweep.added.Store(0)
	left := int64(0)
	l.upstreams.Range(func(u, _ any) bool {
		if u.(*backend.Upstream).Gone() { //nolint:forcetypeassert // nothing else is stored
			l.upstreams.Delete(u)
		} else {
			left++
		}
		return true
	})
	// An endpoint that is gone still has its connections, which end by themselves; it only cannot be found here any more.
	l.endpoints.Range(func(lease, _ any) bool {
		if lease.(backend.Lease).Gone() { //nolint:forcetypeassert // nothing else is stored
			l.endpoints.Delete(lease)
		} else {
			left++
		}
		return true
	})
	l.sweep.left.Store(left)
}
