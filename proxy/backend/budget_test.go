package backend

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/tests/check"
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
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		bad, worse := f.serve(place1, protoH1, closes), f.serve(place2, protoH1, closes)
		e := f.set(healthy(place1), healthy(place2))
		u := f.Upstream(e)
		const stock, requests = 20, 200
		for range retryBurst - stock {
			if !u.budget.allow() {
				t.Fatal("the budget is smaller than retryBurst")
			}
		}
		for range requests { // in no time, so that none are earned by it: TestBudget
			if _, _, err := f.do(e, http.MethodGet, ""); reasonOf(err) != engine.ReasonLost {
				t.Fatalf("got %v, want it lost", err)
			}
		}
		check.Same(t, int64(stock+requests*retryShare), bad.hits.Load()+worse.hits.Load()-requests, "retries of %d requests", requests)
		before := u.meter.exhausted.Load()
		for u.budget.allow() {
		}
		if n := u.meter.exhausted.Load() - before; before == 0 || n != 1 {
			t.Errorf("the exhausted budget was counted %d times, and then %d times for one retry", before, n)
		}
		if u.Plan(false, nil).Budget() || !u.Plan(true, nil).Budget() {
			t.Error("requests that are sent apart have no budget of their own")
		}
	})
}
