package backend

import (
	"slices"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Load returns the current load for the status page: requests in flight, long-running ones, and the
// requests of each endpoint by address.
func (u *Upstream) Load() (inFlight, longRunning int64, endpoints map[string]int64) {
	list := u.snapshot()
	endpoints = make(map[string]int64, len(list))
	for _, e := range list {
		endpoints[e.address] = e.inFlight.Load()
	}
	return u.inFlight.Held(), u.longRunning.Held(), endpoints
}

// Servers returns the local apiservers with their health, in the order of LocalConfig.Servers, for
// the status page.
func (l *Local) Servers() []registry.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.health)
}
