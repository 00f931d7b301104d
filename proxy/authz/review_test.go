package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/reviews"
)

// A user's reviews of very many names delay only that user, who gets Retry-After; others are served
// (defect A7).
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
			<-ctx.Done() // the others get no answer
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
		check.Same(t, 2*maxWaiting-maxWaiting/4, busy.Load(), "refused at once, of %d", 2*maxWaiting)
		check.Same(t, float64(busy.Load()), testutil.ToFloat64(z.metrics.reviews.WithLabelValues("busy")), "counted as refused at once")
		begun := time.Now()
		for i := range maxReviews { // each gives its place back
			a := get("alice")
			a.Name = fmt.Sprint(i)
			if d, err := z.Authorize(t.Context(), a); !d.Allowed || err != nil || time.Since(begun) > 0 {
				t.Fatalf("another user: %v, %v after %s", d, err, time.Since(begun))
			}
		}
		time.Sleep(11 * time.Second)
		check.Same(t, maxReviews/4, peak.Load(), "reviews at once, a quarter of %d", maxReviews)
	})
}

// asker makes an Authorizer; a name may be "user/object".
func asker(t *testing.T, count *reviews.Count, generation func() uint64) reviews.Asker {
	t.Helper()
	z := newAuthorizer(t, Config{Review: (&asked{Count: count}).review, Generation: generation})
	question := func(name string) *Attributes {
		user, object, _ := strings.Cut(name, "/")
		a := get(user)
		a.Name = object
		return a
	}
	return reviews.Asker{Ask: func(ctx context.Context, name string) (bool, error) {
		d, err := z.Authorize(ctx, question(name))
		return d.Allowed, err
	}, Known: func(name string) bool {
		_, known := z.Cached(question(name))
		return known
	}}
}

func TestRevoked(t *testing.T) { reviews.Revoked(t, asker, "alice", "bob") } // allowed and denied

func TestCoalescing(t *testing.T) { reviews.Coalesce(t, asker, "alice") }

func TestNoReviewInVain(t *testing.T) { reviews.InVain(t, asker, "alice") }

func TestTimeoutAndBound(t *testing.T) {
	t.Parallel()
	reviews.Bounds(t, asker, func(i int) string { return fmt.Sprintf("user-%d/%d", i%5, i) }, maxWaiting, maxReviews)
}

// While an apiserver is not ready, its refusals are neither returned nor cached. An approval is:
// rules that it has not read yet allow nothing.
func TestNotReady(t *testing.T) {
	var ready atomic.Bool
	r := newAsked()
	z := newAuthorizer(t, Config{Review: r.review, Ready: ready.Load})
	for _, name := range []string{"denied", "nobody"} {
		if d, err := z.Authorize(t.Context(), get(name)); d.Allowed || !errors.Is(err, errNotReady) {
			t.Errorf("%s: %v, %v while not ready", name, d, err)
		}
		if _, known := z.Cached(get(name)); known {
			t.Errorf("%s: cached an answer of an apiserver that is not ready", name)
		}
	}
	if d, err := z.Authorize(t.Context(), get("alice")); !d.Allowed || err != nil {
		t.Errorf("%v, %v for an allowed user", d, err)
	}
	ready.Store(true)
	if d, err := z.Authorize(t.Context(), get("denied")); d.Allowed || err != nil {
		t.Errorf("%v, %v when ready", d, err)
	}
	if _, known := z.Cached(get("denied")); !known || r.N.Load() != 4 {
		t.Errorf("cached: %v, reviewed %d times", known, r.N.Load())
	}
	check.Same(t, 2, testutil.ToFloat64(z.metrics.reviews.WithLabelValues("error")), "reviews counted as failed")
}
