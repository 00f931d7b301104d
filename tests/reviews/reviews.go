// Package reviews has what holds for everybody who asks an apiserver for reviews, of tokens or of
// what somebody may do, and who remembers what it said.
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

// Count is a part of an apiserver: how it is asked, but not what it says.
type Count struct {
	// Delay is how long each review takes. Zero: no time.
	Delay time.Duration
	// N is how many were asked for, Peak how many were under way at one time.
	N, Peak atomic.Int64
	now     atomic.Int64
}

// Wait is a review: it takes its time, or ends with ctx.
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

// Asker is who asks.
type Asker struct {
	// Ask asks about somebody, and returns whether he is said to be well.
	Ask func(ctx context.Context, name string) (bool, error)
	// Known reports whether it is known without asking.
	Known func(name string) bool
	// No is the error with which nobody is well. Nil: there is none.
	No error
}

// Start makes an Asker of an apiserver, for the configuration that generation numbers.
type Start func(t *testing.T, api *Count, generation func() uint64) Asker

func none() uint64 { return 0 }

// Revoked checks that an answer counts for ten seconds, from its question on, and for the
// configuration that it was asked under: not for what came later, nor while it was on its way.
func Revoked(t *testing.T, start Start, names ...string) {
	for _, name := range names {
		synctest.Test(t, func(t *testing.T) {
			var generation atomic.Uint64
			a := start(t, &Count{Delay: time.Second}, generation.Load)
			for _, step := range []struct {
				name           string
				during, change uint64 // of the configuration: while it is asked, and afterwards
				later          time.Duration
				known          bool
			}{
				{"nothing changed", 0, 0, 8 * time.Second, true},
				{"too old, counted from the question", 0, 0, 9 * time.Second, false},
				{"another configuration afterwards", 0, 1, 0, false},
				{"another configuration meanwhile", 1, 0, 0, false},
			} {
				<-time.After(time.Minute) // of what was asked before nothing is left
				var answered sync.WaitGroup
				answered.Go(func() { _, _ = a.Ask(t.Context(), name) })
				synctest.Wait()
				generation.Add(step.during)
				answered.Wait()
				generation.Add(step.change)
				<-time.After(step.later)
				if known := a.Known(name); known != step.known {
					t.Errorf("%s, %s: known %v", name, step.name, known)
				}
			}
		})
	}
}

// Coalesce checks that one review is for all who ask at one time about somebody who is well. The
// first to ask gives up; the others still get the answer.
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
			t.Errorf("the impatient one got %v", gaveUp)
		}
		if well.Load() != 50 || api.N.Load() != 1 {
			t.Errorf("%d succeeded, asked %d times", well.Load(), api.N.Load())
		}
	})
}

// Bounds checks how many reviews are under way at one time, how many wait beside them, and that all
// end in ten seconds. Each is about another name, which has the number of who asks.
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

// InVain checks that nobody is asked for a request whose time is over: it may have waited for
// others.
func InVain(t *testing.T, start Start, name string) {
	synctest.Test(t, func(t *testing.T) {
		api := &Count{}
		a := start(t, api, none)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := a.Ask(ctx, name)
		synctest.Wait()
		if api.N.Load() != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("asked %d times, and then %v", api.N.Load(), err)
		}
	})
}
