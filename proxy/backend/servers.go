package backend

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

// keptServer is how long a local apiserver that is named no longer keeps its share of the documents,
// as one that is down does: an upgrade of a control-plane node takes minutes.
const keptServer = 15 * time.Minute

// Servers are the local apiservers at one moment. It never changes.
type Servers struct {
	// List has their health. Those that are named no longer are Terminating, and come last.
	List       []registry.Endpoint
	superseded chan struct{}
}

// Superseded returns a channel that is closed once Local.Servers returns newer ones.
func (s *Servers) Superseded() <-chan struct{} { return s.superseded }

// Servers returns the local apiservers, in the order in which they were named.
func (l *Local) Servers() *Servers { return l.published.Load() }

// Follow sets the addresses of the local apiservers. A new one gets clients once all documents know
// it. One that is named no longer gets no new requests, unless only it serves what is asked for, and
// is forgotten by a call after 15 minutes.
func (l *Local) Follow(addresses []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, now := l.servers, time.Now()
	l.servers = nil
	for _, a := range addresses {
		at := slices.IndexFunc(was, func(s *localServer) bool { return s.is.Address == a })
		if at < 0 {
			was = append(was, l.newServer(a))
			at = len(was) - 1
		}
		was[at].is.Terminating = false
		l.servers = append(l.servers, was[at])
	}
	changed := len(l.servers) != len(l.published.Load().List)
	for _, s := range was {
		if slices.Contains(l.servers, s) {
			continue
		}
		if !s.is.Terminating {
			s.is.Terminating, s.left, changed = true, now, true
			l.shared.log.Info("local apiserver is named no longer", "endpoint", s.is.Address)
		}
		if now.Sub(s.left) < keptServer {
			l.servers = append(l.servers, s)
		}
	}
	if changed || !slices.Equal(was, l.servers) {
		l.publishLocked()
	}
}

func (l *Local) newServer(address string) *localServer {
	s := &localServer{first: l.cfg.First, is: registry.Endpoint{Address: address}}
	s.fixed.stuck = true
	s.fixed.at.Store(s)
	for p, u := range l.pools {
		s.of[p] = u.provide(address)
		s.of[p].server = s
	}
	return s
}

// findLocked returns the server at an address, nil if there is none.
func (l *Local) findLocked(address string) *localServer {
	for _, s := range l.servers {
		if s.is.Address == address {
			return s
		}
	}
	return nil
}

// Each calls f for each local apiserver, on a goroutine of its own with a context that ends when the
// server is forgotten, until ctx ends. It returns when all have returned.
func (l *Local) Each(ctx context.Context, f func(ctx context.Context, address string)) error {
	var running sync.WaitGroup
	defer running.Wait()
	ends := make(map[string]context.CancelFunc)
	for now := range latest.Of(ctx, l.Servers, nil) {
		gone := ends
		ends = make(map[string]context.CancelFunc)
		for i := range now.List {
			address := now.List[i].Address
			end := gone[address]
			if end == nil {
				var each context.Context
				each, end = context.WithCancel(ctx) //nolint:gosec // called once it is gone
				running.Go(func() { f(each, address) })
			}
			ends[address] = end
			delete(gone, address)
		}
		for _, end := range gone {
			end()
		}
	}
	return ctx.Err()
}
