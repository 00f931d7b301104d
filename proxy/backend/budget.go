package backend

import (
	"sync/atomic"
	"time"
)

// Retries are counted in thousandths.
const (
	oneRetry = 1000
	// retryShare of the requests may be retried: a backend that fails a fifth is ill, and one that
	// fails all must not get three times the load.
	retryShare = 0.2
	// retryFloor is the number of free retries a second, so that a quiet backend gets some.
	retryFloor = 10
	// retryBurst is the largest balance: a process that dies resets all its requests in flight at
	// once, and all reads among them should be retried. kube-apiserver works on 600 by default, and
	// more wait in its queues.
	retryBurst = 1000
)

// budget limits retries to a share of the requests. Every request uses it, so it has no lock, and
// while it is full nothing is written.
type budget struct {
	saved  atomic.Int64 // thousandths of retries
	filled atomic.Int64 // when the floor was last added, in nanoseconds
	// allow takes one retry. It reports false if the budget is used up, and counts that.
	allow func() bool
}

func (b *budget) init(exhausted *atomic.Uint64) {
	b.saved.Store(retryBurst * oneRetry)
	b.filled.Store(time.Now().UnixNano())
	b.allow = func() bool {
		ok := b.withdraw()
		if !ok {
			exhausted.Add(1)
		}
		return ok
	}
}

// deposit counts a request.
func (b *budget) deposit() {
	if b.saved.Load() < retryBurst*oneRetry { // concurrent ones may exceed it by a share each
		b.saved.Add(retryShare * oneRetry)
	}
}

// withdraw takes one retry if the balance allows.
func (b *budget) withdraw() bool {
	b.refill()
	for {
		n := b.saved.Load()
		if n < oneRetry {
			return false
		}
		if b.saved.CompareAndSwap(n, n-oneRetry) {
			return true
		}
	}
}

// refill adds the floor for the time since the last refill.
func (b *budget) refill() {
	now, last := time.Now().UnixNano(), b.filled.Load()
	earned := (now - last) / int64(time.Second/(retryFloor*oneRetry))
	if earned <= 0 || !b.filled.CompareAndSwap(last, now) {
		return // or another goroutine adds it
	}
	for {
		n := b.saved.Load()
		if b.saved.CompareAndSwap(n, min(n+min(earned, retryBurst*oneRetry), max(n, retryBurst*oneRetry))) {
			return
		}
	}
}
