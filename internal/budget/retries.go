package budget

import (
	"sync/atomic"
	"time"
)

// Retries are counted in thousandths.
const (
	oneRetry = 1000
	// RetryShare of the requests may be retried: a backend that fails a fifth is ill, and one that
	// fails all must not get three times the load.
	RetryShare = 0.2
	// retryFloor is the number of free retries a second, so that a quiet backend gets some.
	retryFloor = 10
	// RetryBurst is the largest balance: a process that dies resets all its requests in flight at
	// once, and all reads among them should be retried. kube-apiserver works on 600 by default, and
	// more wait in its queues.
	RetryBurst = 1000
)

// Retries limits retries to a share of the requests, and is safe for concurrent use. Every request
// uses it, so it has no lock, and while it is full nothing is written.
type Retries struct {
	saved  atomic.Int64 // thousandths of retries
	filled atomic.Int64 // when the floor was last added, in nanoseconds
	// Allow takes one retry. It reports false if the budget is used up, and counts that.
	Allow     func() bool
	exhausted *atomic.Uint64
}

// Init fills the budget. exhausted counts the retries that it refuses.
func (b *Retries) Init(exhausted *atomic.Uint64) {
	b.saved.Store(RetryBurst * oneRetry)
	b.filled.Store(time.Now().UnixNano())
	b.exhausted, b.Allow = exhausted, b.withdraw
}

// Deposit counts a request.
func (b *Retries) Deposit() {
	if b.saved.Load() < RetryBurst*oneRetry { // concurrent ones may exceed it by a share each
		b.saved.Add(RetryShare * oneRetry)
	}
}

// withdraw is Allow, which is made once: a method value for each request would be allocated.
func (b *Retries) withdraw() bool {
	b.refill()
	for {
		n := b.saved.Load()
		if n < oneRetry {
			b.exhausted.Add(1)
			return false
		}
		if b.saved.CompareAndSwap(n, n-oneRetry) {
			return true
		}
	}
}

// refill adds the floor for the time since the last refill.
func (b *Retries) refill() {
	now, last := time.Now().UnixNano(), b.filled.Load()
	earned := (now - last) / int64(time.Second/(retryFloor*oneRetry))
	if earned <= 0 || !b.filled.CompareAndSwap(last, now) {
		return // or another goroutine adds it
	}
	for {
		n := b.saved.Load()
		if b.saved.CompareAndSwap(n, min(n+min(earned, RetryBurst*oneRetry), max(n, RetryBurst*oneRetry))) {
			return
		}
	}
}
