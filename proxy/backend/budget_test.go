package backend

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// drained withdraws retries until the budget refuses, and counts them.
func (b *budget) drained() (n int) {
	for b.withdraw() {
		n++
	}
	return n
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b budget
		b.init(new(atomic.Uint64))
		for _, step := range []struct {
			name     string
			requests int
			wait     time.Duration
			want     int
		}{
			{"the stock", 0, 0, retryBurst},
			{"nothing", 0, 0, 0},
			{"a second", 0, time.Second, retryFloor},
			{"less than a retry's time", 0, 50 * time.Millisecond, 0},
			{"the other half of it", 0, 50 * time.Millisecond, 1},
			{"requests", 1000, 0, 200},
			{"fewer requests than a retry costs", 4, 0, 0},
			{"the one that makes it whole", 1, 0, 1},
			{"a day", 0, 24 * time.Hour, retryBurst},
			{"more requests than may be saved up", 1_000_000, 0, retryBurst},
			{"both", 1_000_000, time.Hour, retryBurst},
		} {
			for range step.requests {
				b.deposit()
			}
			time.Sleep(step.wait)
			if got := b.drained(); got != step.want {
				t.Errorf("%s: %d retries, want %d", step.name, got, step.want)
			}
		}
	})
}

// Concurrent withdrawals get no more than sequential ones.
func TestBudgetAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b budget
		b.init(new(atomic.Uint64))
		var wg sync.WaitGroup
		var got atomic.Int64
		time.Sleep(time.Minute) // would earn more than the maximum
		for range 8 {
			wg.Go(func() {
				for range retryBurst {
					b.deposit()
					if b.withdraw() {
						got.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if most := int64(retryBurst + 8*retryBurst*retryShare + 8); got.Load() > most || got.Load() < most-retryBurst/100 {
			t.Errorf("%d retries, want %d", got.Load(), most)
		}
	})
}

// Retries are limited to a share of requests: a backend that fails every request must not get three
// times the load.
func TestRetryBudget(t *testing.T) {
	bad, worse := newServer(t, protoH1, closes), newServer(t, protoH1, closes)
	f := newFixture(t, nil)
	e := f.set(healthy(bad.address), healthy(worse.address))
	const stock, requests = 20, 200
	f.Upstream(e).budget.filled.Store(math.MaxInt64) // no retries are earned by time: TestBudget
	for range retryBurst - stock {
		if !f.Upstream(e).budget.allow() {
			t.Fatal("the budget is smaller than retryBurst")
		}
	}
	// A dial that took too long for its request is finished for another one. If such a connection
	// is lost, net/http itself sends a GET again, once: http.Request.isReplayable.
	reused := int64(0)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if i.Reused {
			reused++
		}
	}})
	for range requests {
		if _, err := f.RoundTrip(e, newRequest(t, http.MethodGet, "").WithContext(ctx), false); !errors.Is(err, ErrUnanswered) {
			t.Fatalf("got %v, want ErrUnanswered", err)
		}
	}
	extra := bad.hits.Load() + worse.hits.Load() - requests
	if want := int64(stock + requests*retryShare); extra < want || extra > want+reused {
		t.Errorf("%d requests made %d retries, %d of them at most net/http's own, want %d", requests, extra, reused, want)
	}
	before := f.Upstream(e).meter.exhausted.Load()
	for f.Upstream(e).budget.allow() {
	}
	if n := f.Upstream(e).meter.exhausted.Load() - before; before == 0 || n != 1 {
		t.Errorf("the exhausted budget was counted %d times, and then %d times for one retry", before, n)
	}
	if f.Upstream(e).Plan(false).Budget() || !f.Upstream(e).Plan(true).Budget() {
		t.Error("requests that are sent apart have no budget of their own")
	}
}
