package health

import (
	"context"
	"sync"

	"github.com/fairlead-proxy/fairlead/registry"
)

// set is the probes that run. Only Run's goroutine touches it.
type set struct {
	prober  *Prober
	running map[key]*target
	owners  *sync.WaitGroup
	named   map[string]struct{} // APIServices that have series
}

// apply starts the probes that entries ask for and running lacks, and stops those that it no longer asks for.
func (s *set) apply(ctx context.Context, entries []*registry.Entry) {
	wanted := make(map[key]*registry.Entry, len(s.running))
	names := make(map[string]struct{}, len(entries))
	for _, e := range entries {
		if !probed(e) {
			continue
		}
		names[e.Name] = struct{}{}
		for i := range e.Endpoints {
			k := key{place{e.Name, e.Endpoints[i].Address}, e.Backend}
			wanted[k] = e
			if t := s.running[k]; t != nil {
				t.follow(e, &e.Endpoints[i])
			}
		}
	}
	changed := s.stop(wanted, names)
	// Stop before start: a probe that replaces another of the same name and address (a new CA) takes over its series.
	for k, e := range wanted {
		if s.running[k] == nil {
			s.start(ctx, k, e)
			changed = true
		}
	}
	s.named = names
	if changed {
		s.publish()
	}
}

// probed reports whether an entry's endpoints are probed. A protected group's are not: nothing is ever sent there, so neither is our
// certificate.
func probed(e *registry.Entry) bool {
	return !e.Local() && e.Verdict.Reason != registry.ReasonProtectedGroup
}

func (s *set) stop(wanted map[key]*registry.Entry, names map[string]struct{}) (changed bool) {
	for k, t := range s.running {
		if wanted[k] == nil {
			t.cancel()
			s.prober.metrics.forgetEndpoint(k)
			delete(s.running, k)
			changed = true
		}
	}
	for name := range s.named {
		if _, ok := names[name]; !ok {
			s.prober.metrics.forgetName(name)
		}
	}
	return changed
}

func (s *set) start(ctx context.Context, k key, e *registry.Entry) {
	ctx, cancel := context.WithCancel(ctx)
	t := newTarget(s.prober, k, e, cancel)
	s.running[k] = t
	s.owners.Go(func() {
		defer cancel()
		t.run(ctx)
	})
}

// publish lets Signal and Observe find what runs now.
func (s *set) publish() {
	x := &index{
		places: make(map[place]*target, len(s.running)),
		peers:  make(map[string][]*target, len(s.named)),
	}
	for k, t := range s.running {
		x.places[k.place] = t
		x.peers[k.name] = append(x.peers[k.name], t)
	}
	s.prober.index.Store(x)
}
