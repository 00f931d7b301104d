package budget

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	b := New(0, Burst)
	spent := func(n int, now time.Duration) (times int) {
		for b.Spend(n, now) {
			times++
		}
		return times
	}
	check.Same(t, Burst/Completed, spent(Reset+2*Frame, 0), "resets at once")
	// Frames that come faster than the clock's unit must not stop the budget from refilling.
	const rounds, step = 100_000, 30 * time.Microsecond
	n := 0
	for i := range rounds {
		if b.Spend(1, time.Duration(i)*step) {
			n++
			continue
		}
		b.left++ // the refused frame is not charged
	}
	want := int(rounds * step * Rate / time.Second)
	check.Within(t, want-Completed-1, want, n, "allowed in %v", rounds*step)
	const year = 365 * 24 * time.Hour
	check.Same(t, Burst/Completed, spent(Completed, year), "resets after a year")
	b.Earn(2 * Completed)
	check.Same(t, 1, spent(Completed, year), "resets after two requests, minus the refused one")
	b = New(0, Burst)
	b.Sent(1, true)
	check.Same(t, Burst, spent(Frame, 0), "frames at once, whatever was sent before")
	b.Sent(1, true)
	check.Same(t, 1, spent(Frame, 0), "frames after DATA: two, minus the refused one")
	b.Sent(bytesSent-1, false)
	check.Same(t, 0, spent(Frame, 0), "frames after DATA that the peer has made small")
	b.Sent(3*bytesSent, false)
	check.Same(t, 3-2, spent(Frame, 0), "frames after DATA of three updates, minus two refused ones")
	b = New(0, Saved)
	b.Earn(2 * Saved)
	check.Same(t, Saved, spent(Frame, 0), "frames that were saved up")
	check.Same(t, Burst, spent(Frame, year), "frames after a year")
}

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
			check.Same(t, step.want, b.drained(), "%s: retries", step.name)
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
		most := int64(RetryBurst + 8*RetryBurst*RetryShare + 8)
		check.Within(t, most-RetryBurst/100, most, got.Load(), "retries")
	})
}
