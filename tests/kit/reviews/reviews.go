// Package reviews tests the rules that caches of TokenReviews and SubjectAccessReviews share.
package reviews

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// Count counts and delays the reviews of a fake apiserver.
type Count struct {
	Delay  time.Duration // how long each review takes. Zero means no time.
	N, Now atomic.Int64  // N counts the reviews, Now those that run
}

// Wait is one review: it waits for Delay, or until ctx ends.
func (c *Count) Wait(ctx context.Context) error {
	c.N.Add(1)
	c.Now.Add(1)
	defer c.Now.Add(-1)
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
	// Known reports whether the verdict is cached, and whether it accepts.
	Known func(name string) (ok, known bool)
	Busy  func() float64 // counts those that were refused because too many wait
	No    error          // the error of a refusal. Nil means that a refusal is not an error.
}

// Start makes an Asker for an apiserver. generation numbers the configuration.
type Start func(t *testing.T, api *Count, generation func() uint64) Asker

func none() uint64 { return 0 }

// Fresh checks a name's verdict. It is used for a time after its request (zero: not at all), and
// only with the configuration under which it was requested.
func Fresh(t *testing.T, start Start, name string, ok bool, fresh time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		const review = time.Second
		api := &Count{Delay: review}
		var generation atomic.Uint64
		a := start(t, api, generation.Load)
		for i, step := range []struct {
			name           string
			during, change uint64        // changes of the configuration: during the review, and afterwards
			age            time.Duration // of the verdict, counted from the question
			known          bool
		}{
			{"nothing changed", 0, 0, fresh - time.Millisecond, true},
			{"too old", 0, 0, fresh, false},
			{"another configuration afterwards", 0, 1, review, false},
			{"another configuration meanwhile", 1, 0, review, false},
			{"the new configuration's", 0, 0, review, true},
		} {
			<-time.After(fresh + time.Minute) // earlier verdicts have expired
			var answered sync.WaitGroup
			answered.Go(func() {
				got, _ := a.Ask(t.Context(), name)
				check.Same(t, ok, got, "%.20s, %s: accepted", name, step.name)
			})
			synctest.Wait()
			generation.Add(step.during)
			answered.Wait()
			generation.Add(step.change)
			<-time.After(step.age - review)
			accepted, known := a.Known(name)
			want := step.known && fresh > 0
			check.Same(t, [2]bool{want && ok, want}, [2]bool{accepted, known}, "%.20s, %s: accepted from the cache, cached", name, step.name)
			check.Same(t, int64(i+1), api.N.Load(), "%.20s, %s: reviews", name, step.name)
		}
	})
}

// Coalesce checks that concurrent callers share one review, and that it outlives the first caller,
// which gives up. A request whose context has ended before causes none.
func Coalesce(t *testing.T, start Start, name string) {
	synctest.Test(t, func(t *testing.T) {
		api := &Count{Delay: time.Second}
		a := start(t, api, none)
		over, end := context.WithCancel(t.Context())
		end()
		_, err := a.Ask(over, name)
		synctest.Wait()
		check.Same(t, true, api.N.Load() == 0 && errors.Is(err, context.Canceled), "after the end of a request: %d reviews, then %v", api.N.Load(), err)
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
		check.Same(t, [2]int64{50, 1}, [2]int64{well.Load(), api.N.Load()}, "callers that succeeded, reviews")
	})
}

// Bounds checks the limits of running and waiting reviews: one source has a quarter of either, and
// delays no other. All reviews end within ten seconds. name is different for each source and i.
func Bounds(t *testing.T, start Start, name func(source, i int) string, waiting, reviews int) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &Count{Delay: time.Hour}
		a := start(t, api, none)
		var full, failed atomic.Int64
		var wg sync.WaitGroup
		ask := func(source, n int) {
			for i := range n {
				wg.Go(func() {
					_, err := a.Ask(t.Context(), name(source, i))
					if errors.Is(err, bound.ErrFull) {
						full.Add(1)
					}
					if err != nil && !errors.Is(err, a.No) {
						failed.Add(1)
					}
				})
			}
			synctest.Wait()
		}
		begun := time.Now()
		ask(0, waiting)
		check.Same(t, waiting-waiting/4, int(full.Load()), "refused at once, of %d of one source", waiting)
		check.Same(t, reviews/4, int(api.Now.Load()), "reviews of one source at once")
		api.Delay = 0
		for i := range reviews { // each gives its place back
			if _, err := a.Ask(t.Context(), name(1, i)); err != nil && !errors.Is(err, a.No) || time.Since(begun) > 0 {
				t.Fatalf("another source: %v after %s", err, time.Since(begun))
			}
		}
		api.Delay = time.Hour
		for source := 2; source < 5; source++ {
			ask(source, waiting/4)
		}
		check.Same(t, waiting-waiting/4, int(full.Load()), "refused at once, before all places are taken")
		ask(5, 100)
		check.Same(t, waiting-waiting/4+100, int(full.Load()), "refused at once, of 100 beyond the limit")
		check.Same(t, float64(full.Load()), a.Busy(), "counted as refused at once")
		check.Same(t, reviews, int(api.Now.Load()), "reviews at once")
		wg.Wait()
		check.Same(t, 2*waiting-waiting/4+100, int(failed.Load()), "callers without an answer")
		check.Same(t, 10*time.Second, time.Since(begun), "time")
	})
}

// Server is an apiserver for reviews.
type Server struct {
	*httptest.Server
	REST *rest.Config // a client's configuration for it
}

// Serve answers the reviews of a path until the test ends, or the Server is closed.
func Serve[T any](t *testing.T, path string, answer func(review *T)) *Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := new(T)
		if err := json.NewDecoder(r.Body).Decode(review); err != nil || r.URL.Path != path {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		answer(review)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return &Server{s, &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}}
}
