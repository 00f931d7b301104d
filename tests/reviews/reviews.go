// Package reviews tests the rules that caches of TokenReviews and SubjectAccessReviews share.
package reviews

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Count counts and delays the reviews of a fake apiserver.
type Count struct {
	// Delay is how long each review takes. Zero means no time.
	Delay time.Duration
	// N counts the reviews, Peak is the largest number of concurrent ones.
	N, Peak atomic.Int64
	now     atomic.Int64
}

// Wait is one review: it waits for Delay, or until ctx ends.
func (c *Count) Wait(ctx context.Context) error {
	c.N.Add(1)
	c.Peak.Store(max(c.Peak.Load(), c.now.Add(1)))
	defer c.now.Add(-1)
	if c.Delay <= 0 {
		return nil
	}
	select {
	case <-time.After(c.Delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Asker is the cache under test.
type Asker struct {
	// Ask reviews a name, and returns whether it is accepted.
	Ask func(ctx context.Context, name string) (bool, error)
	// Known reports whether the verdict is cached.
	Known func(name string) bool
	// No is the error of a refusal. Nil means that a refusal is not an error.
	No error
}

// Start makes an Asker for an apiserver. generation numbers the configuration.
type Start func(t *testing.T, api *Count, generation func() uint64) Asker

func none() uint64 { return 0 }

// Revoked checks that a verdict is used for ten seconds after its request, and only with the
// configuration under which it was requested.
func Revoked(t *testing.T, start Start, names ...string) {
	for _, name := range names {
		synctest.Test(t, func(t *testing.T) {
			var generation atomic.Uint64
			a := start(t, &Count{Delay: time.Second}, generation.Load)
			for _, step := range []struct {
				name           string
				during, change uint64 // changes of the configuration: during the review, and afterwards
				later          time.Duration
				known          bool
			}{
				{"nothing changed", 0, 0, 8 * time.Second, true},
				{"too old, counted from the question", 0, 0, 9 * time.Second, false},
				{"another configuration afterwards", 0, 1, 0, false},
				{"another configuration meanwhile", 1, 0, 0, false},
				{"the new configuration's", 0, 0, 0, true},
			} {
				<-time.After(time.Minute) // earlier verdicts have expired
				var answered sync.WaitGroup
				answered.Go(func() { _, _ = a.Ask(t.Context(), name) })
				synctest.Wait()
				generation.Add(step.during)
				answered.Wait()
				generation.Add(step.change)
				<-time.After(step.later)
				if known := a.Known(name); known != step.known {
					t.Errorf("%s, %s: cached %v", name, step.name, known)
				}
			}
		})
	}
}

// Coalesce checks that concurrent callers share one review, and that it outlives the first caller,
// which gives up.
func Coalesce(t *testing.T, start Start, name string) {
	synctest.Test(t, func(t *testing.T) {
		api := &Count{Delay: time.Second}
		a := start(t, api, none)
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var gaveUp error
		var well atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() { _, gaveUp = a.Ask(impatient, name) })
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if ok, err := a.Ask(t.Context(), name); ok && err == nil {
					well.Add(1)
				}
			})
		}
		wg.Wait()
		if !errors.Is(gaveUp, context.DeadlineExceeded) || a.No != nil && errors.Is(gaveUp, a.No) {
			t.Errorf("the caller that gave up got %v", gaveUp)
		}
		if well.Load() != 50 || api.N.Load() != 1 {
			t.Errorf("%d succeeded with %d reviews", well.Load(), api.N.Load())
		}
	})
}

// Bounds checks the limits of running and waiting reviews, and that all end within ten seconds.
// Each caller has a different name.
func Bounds(t *testing.T, start Start, name func(i int) string, waiting, reviews int) {
	synctest.Test(t, func(t *testing.T) {
		api := &Count{Delay: time.Hour}
		a := start(t, api, none)
		var failed atomic.Int64
		var wg sync.WaitGroup
		begun := time.Now()
		for i := range waiting + 100 {
			wg.Go(func() {
				if _, err := a.Ask(t.Context(), name(i)); err != nil && (a.No == nil || !errors.Is(err, a.No)) {
					failed.Add(1)
				}
			})
		}
		synctest.Wait()
		if got := failed.Load(); got != 100 {
			t.Errorf("%d were refused at once, want 100", got)
		}
		wg.Wait()
		if failed.Load() != int64(waiting)+100 || api.Peak.Load() != int64(reviews) {
			t.Errorf("%d failed, %d reviews at once, want %d", failed.Load(), api.Peak.Load(), reviews)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// InVain checks that a request whose context has ended, perhaps while it waited, causes no review.
func InVain(t *testing.T, start Start, name string) {
	synctest.Test(t, func(t *testing.T) {
		api := &Count{}
		a := start(t, api, none)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := a.Ask(ctx, name)
		synctest.Wait()
		if api.N.Load() != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d reviews, then %v", api.N.Load(), err)
		}
	})
}
