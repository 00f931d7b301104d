package backend

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

// keptServer is how long a local apiserver that is named no longer keeps its share of the
// documents, as one that is down does: an upgrade of a control-plane node takes minutes.
const keptServer = 15 * time.Minute

// servers are the local apiservers at one moment. It is immutable.
type servers struct {
	all        []*localServer
	list       []registry.Endpoint // their health
	superseded chan struct{}
}

func (s *servers) Superseded() <-chan struct{} { return s.superseded }

// find returns the server at an address, nil if there is none.
func (s *servers) find(address string) *localServer {
	for _, at := range s.all {
		if at.of[0].address == address {
			return at
		}
	}
	return nil
}

// Servers returns the local apiservers with their health, in the order in which they were named,
// and a channel that is closed once that has changed. Those that are named no longer are
// Terminating and come last.
func (l *Local) Servers() (list []registry.Endpoint, superseded <-chan struct{}) {
	now := l.servers.Load()
	return now.list, now.superseded
}

// Follow sets the addresses of the local apiservers. A new one gets clients once all documents
// know it. Once there is one with clients, one that is named no longer gets no new requests, unless
// only it serves what is asked for. It is forgotten by a call after 15 minutes, but not while it is
// healthy and none is to take over.
func (l *Local) Follow(addresses []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, now, all := l.servers.Load(), time.Now(), make([]*localServer, 0, len(addresses))
	for _, a := range addresses {
		s := was.find(a)
		if s == nil {
			s = &localServer{first: l.cfg.First, is: registry.Endpoint{Address: a}}
			s.fixed.stuck = true
			s.fixed.at.Store(s)
			for p, u := range l.pools {
				s.of[p] = u.provide(a)
				s.of[p].server = s
			}
		}
		s.is.Terminating = false
		all = append(all, s)
	}
	next := l.successorLocked(all)
	for _, s := range was.all {
		if slices.Contains(all, s) {
			continue
		}
		if !s.is.Terminating {
			s.is.Terminating, s.left = true, now
			l.shared.log.Info("local apiserver is named no longer", "endpoint", s.is.Address)
		}
		if now.Sub(s.left) < keptServer || !next && s.is.Health == registry.Healthy {
			all = append(all, s)
		}
	}
	if !slices.EqualFunc(all, was.list, func(s *localServer, e registry.Endpoint) bool { return s.is == e }) {
		l.publishLocked(all)
	}
}

// successorLocked reports whether a server that is named can be used.
func (l *Local) successorLocked(all []*localServer) bool {
	return slices.ContainsFunc(all, func(s *localServer) bool {
		return s.is.Health == registry.Healthy && !s.is.Terminating && !l.unknownLocked(s.is.Address)
	})
}

// Each calls f for each local apiserver, on a goroutine of its own with a context that ends when
// the server is forgotten, until ctx ends. It returns when all have returned.
func (l *Local) Each(ctx context.Context, f func(ctx context.Context, address string)) error {
	var running sync.WaitGroup
	defer running.Wait()
	ends := make(map[string]context.CancelFunc)
	for now := range latest.Of(ctx, l.servers.Load, nil) {
		gone := ends
		ends = make(map[string]context.CancelFunc)
		for _, s := range now.all {
			address := s.of[0].address
			end := gone[address]
			if end == nil {
				var each context.Context
				each, end = context.WithCancel(ctx)
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
