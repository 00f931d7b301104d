package authz

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An answer was true when it was asked for: later roles end it, also those that came while it was
// on its way, and so does time from then on.
func TestRevoked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"alice", "bob"} { // may and may not
		synctest.Test(t, func(t *testing.T) {
			var generation atomic.Uint64
			r := &asked{delay: time.Second}
			z := newAuthorizer(t, Config{Review: r.review, Generation: generation.Load})
			for _, step := range []struct {
				name           string
				during, change uint64 // of the roles: while it is asked, and afterwards
				later          time.Duration
				known          bool
			}{
				{"nothing changed", 0, 0, 8 * time.Second, true},
				{"too old, counted from the question", 0, 0, 9 * time.Second, false},
				{"other roles afterwards", 0, 1, 0, false},
				{"other roles meanwhile", 1, 0, 0, false},
			} {
				pass(time.Minute) // of what was asked before nothing is left
				var answered sync.WaitGroup
				answered.Go(func() { _, _ = z.Authorize(t.Context(), get(name)) })
				synctest.Wait()
				generation.Add(step.during)
				answered.Wait()
				generation.Add(step.change)
				pass(step.later)
				if _, known := z.Cached(get(name)); known != step.known {
					t.Errorf("%s, %s: known %v", name, step.name, known)
				}
			}
		})
	}
}
