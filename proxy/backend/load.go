package backend

import (
	"cmp"
	"slices"

	"github.com/fairlead-proxy/fairlead/registry"
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

// Servers returns the local apiservers with their health, in the order of LocalConfig.Servers, for
// the status page.
func (l *Local) Servers() []registry.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.health)
}
