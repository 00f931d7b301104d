package authz

import (
	"context"
	"errors"
	"fmt"
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
	t.Parallel()
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
