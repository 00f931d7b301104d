package authz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/registry/bound"
)

// TestReviewsOfOneUser: who asks for very many names at once waits for himself, and is told to come
// again; others are served (defect A7).
func TestReviewsOfOneUser(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var busy, active, peak atomic.Int64
		z := newAuthorizer(t, Config{Review: func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() == "alice" {
				return authorizer.DecisionAllow, "", nil
			}
			under := active.Add(1)
			peak.Store(max(peak.Load(), under))
			<-ctx.Done() // of the others nothing is heard
			active.Add(-1)
			return authorizer.DecisionNoOpinion, "", ctx.Err()
		}})
		for i := range 2 * maxWaiting {
			go func() { // ends with the review's timeout
				a := get("mallory")
				a.Name = fmt.Sprint(i)
				if _, err := z.Authorize(t.Context(), a); errors.Is(err, bound.ErrFull) {
					busy.Add(1)
				}
			}()
		}
		synctest.Wait()
		if got := busy.Load(); got != 2*maxWaiting-maxWaiting/4 {
			t.Errorf("%d of %d were refused at once", got, 2*maxWaiting)
		}
		begun := time.Now()
		if d, err := z.Authorize(t.Context(), get("alice")); !d.Allowed || err != nil || time.Since(begun) > 0 {
			t.Errorf("another user: %v, %v after %s", d, err, time.Since(begun))
		}
		time.Sleep(11 * time.Second)
		if got := peak.Load(); got != maxReviews/4 {
			t.Errorf("%d were under way at once, want a quarter of %d", got, maxReviews)
		}
	})
}

// Nobody is asked for a request whose time is over: it may have waited for others.
func TestNoReviewInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := false
		z := newAuthorizer(t, Config{Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = true
			return authorizer.DecisionAllow, "", nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := z.Authorize(ctx, get("alice"))
		synctest.Wait()
		if asked || !errors.Is(err, context.Canceled) {
			t.Errorf("asked %v, and then %v", asked, err)
		}
	})
}

// An answer was true when it was asked for: later roles end it, also those that came while it was
// on its way, and so does time from then on.
func TestRevoked(t *testing.T) {
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

// A no of an apiserver that is not ready is neither passed on nor kept. Its yes is: rules that are
// not read yet allow nothing.
func TestNotReady(t *testing.T) {
	var ready atomic.Bool
	r := &asked{}
	z := newAuthorizer(t, Config{Review: r.review, Ready: ready.Load})
	for _, name := range []string{"denied", "nobody"} {
		if d, err := z.Authorize(t.Context(), get(name)); d.Allowed || !errors.Is(err, errNotReady) {
			t.Errorf("%s: %v, %v while not ready", name, d, err)
		}
		if _, known := z.Cached(get(name)); known {
			t.Errorf("%s: kept what an apiserver says that is not ready", name)
		}
	}
	if d, err := z.Authorize(t.Context(), get("alice")); !d.Allowed || err != nil {
		t.Errorf("%v, %v for who may", d, err)
	}
	ready.Store(true)
	if d, err := z.Authorize(t.Context(), get("denied")); d.Allowed || err != nil {
		t.Errorf("%v, %v when ready", d, err)
	}
	if _, known := z.Cached(get("denied")); !known || r.n.Load() != 4 {
		t.Errorf("kept: %v, asked %d times", known, r.n.Load())
	}
}
