// Package budget bounds floods on an HTTP/2 connection.
package budget

import "time"

// Budget limits the work that the peer of a connection can cause without moving a request forward.
// It refills over time and with completed requests, and bounds every kind of flood: PING, SETTINGS
// and empty DATA (CVE-2019-9512, -9515, -9518), rapid reset (CVE-2023-44487) and streams that the
// peer makes us reset (CVE-2025-8671). It is not safe for concurrent use.
type Budget struct {
	left int
	at   time.Duration // when the budget was last refilled
}

const (
	// Burst is a full budget, 500 resets at once: a client may cancel all its watches.
	Burst = 5000
	// Rate is the refill per second: 100 resets a second, far above what controllers do.
	Rate = 1000

	// Control is the cost of a frame that is only read, and perhaps acknowledged.
	Control = 1
	// Reset is the cost of a stream that either side ends early.
	Reset = 10
	// Refused is the cost of a request head that cannot be served: over 0.1 ms of work.
	Refused = 100

	completed = Reset // the refund for one completed stream: one reset
)

// New returns a full budget. Here and in Spend, now must come from one clock that never goes back.
func New(now time.Duration) Budget { return Budget{Burst, now} }

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

// Completed refunds the budget for a request that was answered.
func (b *Budget) Completed() { b.left = min(Burst, b.left+completed) }

// Acknowledged refunds what two frames cost with which a peer returns the credit of one frame of
// DATA: for its stream and for the connection.
func (b *Budget) Acknowledged() { b.left = min(Burst, b.left+2*Control) }

// Last sets the remaining budget to n, for streams in flight while their connection is closed.
func (b *Budget) Last(n int) { b.left = n }
