// Package budget bounds floods on an HTTP/2 connection, and retries at a backend.
package budget

import (
	"sync/atomic"
	"time"
)

// Budget limits the work that the peer of a connection can cause without moving a request forward. Each frame is
// charged, on whatever stream. It refills over time and with what is of use, and so bounds every kind of flood: PING,
// SETTINGS and empty DATA (CVE-2019-9512, -9515, -9518), rapid reset (CVE-2023-44487), streams that the peer makes us
// reset (CVE-2025-8671), frames on streams that have ended. It is not safe for concurrent use.
type Budget struct {
	left int
	most int // what can be earned
	at   time.Duration
}

const (
	// Burst is a full budget, 500 resets at once: a client may cancel all its requests.
	Burst = 5000
	// Rate is the refill per second: 100 resets a second, far above what controllers do.
	Rate = 1000
	// Saved is what a backend can save up. Many clients share its connection, and it may answer
	// what they have sent for a while all at once. To read as many frames takes some 20 ms.
	Saved = 20 * Burst

	// Frame is the cost of each frame, but for DATA with content that somebody waits for.
	Frame = 1
	// Reset is the cost of a stream that either side ends early, beside the frames that begin and end it: 10 together.
	Reset = 8
	// Refused is the cost of a request head that cannot be served: over 0.1 ms of work.
	Refused = 100
	// Completed is earned by a client for a request that was answered, or failed without its fault: one reset.
	Completed = Reset + 2*Frame
	// Opened is earned by a backend for each request. It may answer with sixteen interim heads and
	// twice break the protocol, however fast clients ask.
	Opened = 32
	// bytesSent is what one WINDOW_UPDATE returns, of clients that return least at a time. Those
	// known do so from 1 KiB on, for the stream and for the connection.
	bytesSent = 128
)

// New returns a full budget that can earn most. Here and in Spend, now must come from one clock that never goes back.
func New(now time.Duration, most int) Budget { return Budget{Burst, most, now} }

// Spend charges n. It reports false when the budget is exhausted.
func (b *Budget) Spend(n int, now time.Duration) bool {
	if b.left < n {
		const one = time.Second / Rate
		came := (now - b.at) / one
		b.left = min(Burst, b.left+int(came))
		b.at += came * one
	}
	b.left -= n
	return b.left >= 0
}

// Earn refunds n.
func (b *Budget) Earn(n int) { b.left = min(b.most, b.left+n) }

// Sent refunds what the peer's WINDOW_UPDATEs for n bytes of DATA cost. Whole says that the peer's windows have not
// made the frame small: it may then return the credit of each frame at once, for its stream and for the connection.
func (b *Budget) Sent(n int, whole bool) {
	if whole {
		n = max(n, 2*bytesSent)
	}
	b.Earn(n / bytesSent)
}

// Retries are counted in thousandths.
const (
	oneRetry = 1000
	// RetryShare of the requests may be retried: a backend that fails all must not get three times the load.
	RetryShare = 0.2
	retryFloor = 10 // the number of free retries a second, so that a quiet backend gets some
	// RetryBurst is the largest balance: a process that dies resets all its requests in flight at once, and all reads
	// among them should be retried. kube-apiserver works on 600 by default, and more wait in its queues.
	RetryBurst = 1000
)

// Retries limits retries to a share of the requests, and is safe for concurrent use. Every request
// uses it, so it has no lock, and while it is full nothing is written.
type Retries struct {
	saved     atomic.Int64 // thousandths of retries
	began     time.Time
	filled    atomic.Int64 // when the floor was last added, in nanoseconds since began
	Allow     func() bool  // takes one retry. It reports false if the budget is used up, and counts that
	exhausted *atomic.Uint64
}

// Init fills the budget. exhausted counts the retries that it refuses.
func (b *Retries) Init(exhausted *atomic.Uint64) {
	b.saved.Store(RetryBurst * oneRetry)
	b.began = time.Now()
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

func (b *Retries) refill() {
	now, last := int64(time.Since(b.began)), b.filled.Load()
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
