package health

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

// set holds what is probed. Only Run's goroutine touches it.
type set struct {
	prober  *Prober
	owners  *sync.WaitGroup
	targets map[key]*target
	entries []*registry.Entry    // as last applied
	claims  map[string]peers     // :: APIService
	changed map[*target]struct{} // those with changed members
}

// peers are the claims of one APIService, by address. They never change.
type peers map[string]*claim

// apply changes the set to what a table asks for.
func (s *set) apply(ctx context.Context, entries []*registry.Entry) {
	for _, c := range latest.Diff(s.entries, entries) {
		switch {
		case c.New != nil && probed(c.New):
			s.enter(c.New)
		case c.Old != nil && probed(c.Old):
			s.leave(c.Old.Name)
		}
	}
	s.entries = entries
	if len(s.changed) > 0 {
		s.start(ctx)
		s.prober.index.Store(new(maps.Clone(s.claims)))
	}
}

// probed reports whether an entry's endpoints are probed. Those of a protected group are not:
// nothing is ever sent there, not even our certificate.
func probed(e *registry.Entry) bool {
	return !e.Local() && e.Verdict.Reason != registry.ReasonProtectedGroup
}

// enter makes claims of an entry's endpoints.
func (s *set) enter(e *registry.Entry) {
	was, now := s.claims[e.Name], make(peers, len(e.Endpoints))
	of := func(ep *registry.Endpoint) key {
		return key{e.Backend, ep.Address, cmp.Or(e.Settings.ProbeInterval, defaultInterval), e.GroupVersion.Empty()}
	}
	for i := range e.Endpoints {
		ep := &e.Endpoints[i]
		if c := was[ep.Address]; c != nil && c.target.key == of(ep) {
			c.follow(ep)
			now[ep.Address] = c
		}
	}
	// Drop before add: a claim that replaces another of its name and address takes over its series.
	for address, c := range was {
		if now[address] == nil {
			s.drop(c)
		}
	}
	for i := range e.Endpoints {
		if ep := &e.Endpoints[i]; now[ep.Address] == nil {
			now[ep.Address] = s.add(of(ep), e)
		}
	}
	s.claims[e.Name] = now
}

// leave forgets an APIService that is no longer probed.
func (s *set) leave(name string) {
	for _, c := range s.claims[name] {
		s.drop(c)
	}
	delete(s.claims, name)
	s.prober.metrics.probes.DeletePartialMatch(prometheus.Labels{"name": name})
}

func (s *set) add(k key, e *registry.Entry) *claim {
	t := s.targets[k]
	if t == nil {
		t = newTarget(s.prober, k)
		s.targets[k] = t
	}
	c := newClaim(t, e)
	t.members[c] = struct{}{}
	s.changed[t] = struct{}{}
	return c
}

func (s *set) drop(c *claim) {
	c.gone.Store(true)
	s.prober.metrics.healthy.DeleteLabelValues(c.name, c.target.key.address)
	delete(c.target.members, c)
	s.changed[c.target] = struct{}{}
}

// start hands the changed targets their claims, and ends the targets that have none.
func (s *set) start(ctx context.Context) {
	for t := range s.changed {
		if len(t.members) == 0 {
			t.cancel()
			delete(s.targets, t.key)
			continue
		}
		claims := slices.Collect(maps.Keys(t.members))
		t.claims.Store(&claims)
		if t.cancel != nil {
			t.poke()
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		t.cancel = cancel
		s.owners.Go(func() {
			defer cancel()
			t.run(ctx)
		})
	}
	clear(s.changed)
}
