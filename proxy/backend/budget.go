package backend

import (
	"sync"
	"time"
)

const (
	// retryShare of the requests may be retries: a backend that fails a fifth is sick, and one that fails all must not get three times the load.
	retryShare = 0.2
	// retryFloor is how many retries a second are free, so that a quiet backend gets its own.
	retryFloor = 10
	// retryBurst is the most that may have been saved up: a process that dies resets all that it has under way at once, and every read of them is to be answered by
	// another. kube-apiserver works on 600 by default, and more wait in its queues.
	retryBurst = 1000
)

// budget bounds retries to a share of the requests.
type budget struct {
	// mu guards tokens and filled.
	mu     sync.Mutex
	tokens float64
	filled time.Time
}

func (b *budget) init() {
	b.tokens, b.filled = retryBurst, time.Now()
}

// deposit counts a request.
func (b *budget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+retryShare, retryBurst)
}

// withdraw takes a retry, if there is one.
func (b *budget) withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.tokens+retryFloor*now.Sub(b.filled).Seconds(), retryBurst)
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
