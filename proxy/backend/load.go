package backend

import (
	"slices"
	"time"

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

// Said returns the last GOAWAY with an error that came from an endpoint. A zero time means that
// none has come.
func (u *Upstream) Said(address string) (at time.Time, text string) {
	u.mu.Lock()
	e := u.endpoints[address]
	u.mu.Unlock()
	if e == nil {
		return at, text
	}
	if c := e.via.Load(); c != nil {
		e = c
	}
	if s := e.said.Load(); s != nil {
		return s.at, s.text
	}
	return at, text
}

// Servers returns the local apiservers with their health, in the order of LocalConfig.Servers, for
// the status page.
func (l *Local) Servers() []registry.Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.health)
}
