package documents

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// every is the time between requests to a healthy backend, ± 20 %: a change is seen within a minute.
	every = 50 * time.Second
	// firstRetry and lastRetry are the pauses after failures, doubling. A restart takes a second or
	// so. A backend that fails for long is asked as often as a healthy one.
	firstRetry = 250 * time.Millisecond
	lastRetry  = every
	// leastGap is the least time between requests caused by changes: a rollout of ten endpoints causes one request.
	leastGap = 100 * time.Millisecond
)

type backends[S, L any] map[*registry.Backend]*backend[S, L]

type backend[S, L any] struct {
	of      *Sources[S, L]
	known   atomic.Pointer[S] // never nil
	entries atomic.Pointer[[]*registry.Entry]
	poke    chan struct{} // one slot: ask now
	end     context.CancelFunc
	failing Reason // why the last request failed, owned by the goroutine
}

type change = latest.Change[*registry.Entry]

// update applies a table: it starts, ends and wakes goroutines, and waits for none. They all end
// with ctx. It returns the table's backends; those that have left it are still stored.
func (s *Sources[S, L]) update(ctx context.Context, t *registry.Table, changes []change) *backends[S, L] {
	groups := make(map[*registry.Backend][]*registry.Entry)
	for _, e := range t.Servers() {
		groups[e.Backend] = append(groups[e.Backend], e)
	}
	delete(groups, nil)
	last, now := *s.backends.Load(), make(backends[S, L], len(groups))
	// The same Service with other trust: another CA or TLS name does not make it another server.
	former := make(map[*registry.Backend][]*backend[S, L])
	for _, c := range changes {
		if c.Old == nil || c.New == nil || c.Old.Backend == nil || c.New.Backend == nil {
			continue
		}
		if was, is := c.Old.Backend, c.New.Backend; was != is && was.SameService(is) {
			former[is] = append(former[is], last[was])
		}
	}
	for of, entries := range groups {
		b := last[of]
		if b == nil {
			b = s.start(ctx, entries, former[of])
		} else if old := b.entries.Swap(&entries); worthAsking(*old, entries) {
			latest.Wake(b.poke)
		}
		now[of] = b
	}
	for of, list := range former {
		for _, was := range list {
			to, kept := &now[of].known, was.known.Load() // others may have had the new one before
			for is := to.Load(); is != kept && !to.CompareAndSwap(is, s.kind.Join(is, kept)); {
				is = to.Load()
			}
		}
	}
	all := maps.Clone(now)
	for of, b := range last {
		if now[of] == nil {
			b.end()
			all[of] = b
		}
	}
	s.backends.Store(&all)
	return &now
}

// start starts a backend. It begins with the state of a former one, if there is one.
func (s *Sources[S, L]) start(ctx context.Context, entries []*registry.Entry, former []*backend[S, L]) *backend[S, L] {
	ctx, cancel := context.WithCancel(ctx) //nolint:gosec // b.end, once the backend has no entry any more
	b := &backend[S, L]{of: s, poke: make(chan struct{}, 1), end: cancel}
	b.entries.Store(&entries)
	b.known.Store(new(S))
	if len(former) > 0 {
		b.known.Store(former[0].known.Load())
	}
	s.running.Go(func() { b.run(ctx) })
	return b
}

// worthAsking reports whether a backend's documents may have changed: it has another group-version or other endpoints,
// has recovered, lost one, is no longer alone or alone again, or its APIService has changed, as an operator may ask by.
func worthAsking(old, now []*registry.Entry) bool {
	sameAddress := func(a, b registry.Endpoint) bool { return a.Address == b.Address }
	return slices.ContainsFunc(latest.Diff(old, now), func(c change) bool {
		if c.Old == nil || c.New == nil {
			return c.Old == nil
		}
		return c.New.Verdict.Available() && !c.Old.Verdict.Available() || gone(c.New) && !gone(c.Old) ||
			c.New.Edited(c.Old) || (len(c.New.Further) > 0) != (len(c.Old.Further) > 0) ||
			!slices.EqualFunc(c.Old.Endpoints, c.New.Endpoints, sameAddress)
	})
}

// Askable reports whether a backend may be asked for an entry: it has endpoints, and is not known to be unavailable,
// or is because it has no such group-version. An entry that was never probed may be asked for.
func Askable(e *registry.Entry) bool {
	return len(e.Endpoints) > 0 && (e.Verdict.Status != corev1.ConditionFalse || gone(e))
}

// gone reports whether all of a backend answers, and has an entry's group-version no longer. Then its documents are
// right without that, as after an upgrade: what it had is kept only while it is silent or in doubt.
func gone(e *registry.Entry) bool {
	return e.Verdict.Reason == registry.ReasonFailedDiscoveryCheck &&
		!slices.ContainsFunc(e.Endpoints, func(o registry.Endpoint) bool { return !o.Gone })
}

func (b *backend[S, L]) run(ctx context.Context) {
	retry, idle := retries(firstRetry, lastRetry), func(e *registry.Entry) bool { return !Askable(e) }
	for {
		entries := slices.DeleteFunc(slices.Clone(*b.entries.Load()), idle)
		slices.SortStableFunc(entries, func(x, y *registry.Entry) int { // who needs only one uses the first
			return cmp.Compare(metric.Number(y.Verdict.Available()), metric.Number(x.Verdict.Available()))
		})
		var due <-chan time.Time // an unavailable backend is asked after a change of the table
		if len(entries) > 0 {
			pause := every
			if err := b.of.ask(ctx, b, entries); err != nil {
				pause = retry()
			} else {
				retry = retries(firstRetry, lastRetry)
			}
			if !latest.Sleep(ctx, leastGap) {
				return
			}
			due = time.After(around(pause))
		}
		select {
		case <-due:
		case <-b.poke:
		case <-ctx.Done():
			return
		}
	}
}
