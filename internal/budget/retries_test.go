package budget

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// drained withdraws retries until the budget refuses, and counts them.
func (b *Retries) drained() (n int) {
	for b.withdraw() {
		n++
	}
	return n
}

func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Retries
		b.Init(new(atomic.Uint64))
		for _, step := range []struct {
			name     string
			requests int
			wait     time.Duration
			want     int
		}{
			{"the stock", 0, 0, RetryBurst},
			{"nothing", 0, 0, 0},
			{"a second", 0, time.Second, retryFloor},
			{"less than a retry's time", 0, 50 * time.Millisecond, 0},
			{"the other half of it", 0, 50 * time.Millisecond, 1},
			{"requests", 1000, 0, 200},
			{"fewer requests than a retry costs", 4, 0, 0},
			{"the one that makes it whole", 1, 0, 1},
			{"a day", 0, 24 * time.Hour, RetryBurst},
			{"more requests than may be saved up", 1_000_000, 0, RetryBurst},
			{"both", 1_000_000, time.Hour, RetryBurst},
		} {
			for range step.requests {
				b.Deposit()
			}
			time.Sleep(step.wait)
			if got := b.drained(); got != step.want {
				t.Errorf("%s: %d retries, want %d", step.name, got, step.want)
			}
		}
	})
}

// Concurrent withdrawals get no more than sequential ones.
func TestRetriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Retries
		b.Init(new(atomic.Uint64))
		var wg sync.WaitGroup
		var got atomic.Int64
		time.Sleep(time.Minute) // would earn more than the maximum
		for range 8 {
			wg.Go(func() {
				for range RetryBurst {
					b.Deposit()
					if b.withdraw() {
						got.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if most := int64(RetryBurst + 8*RetryBurst*RetryShare + 8); got.Load() > most || got.Load() < most-RetryBurst/100 {
			t.Errorf("%d retries, want %d", got.Load(), most)
		}
	})
}
