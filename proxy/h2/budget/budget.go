// Package budget bounds floods on an HTTP/2 connection.
package budget

import "time"

// Budget pays for what the peer of a connection has us do without moving a request forward. It refills with time and with completed requests, and bounds floods of every
// kind: PING, SETTINGS and empty DATA (CVE-2019-9512, -9515, -9518), rapid reset (CVE-2023-44487) and streams that the peer makes us reset (CVE-2025-8671). It is for one
// goroutine at a time.
type Budget struct {
	left int
	at   time.Duration // when time was last added
}

const (
	// Burst is what a full budget holds: 500 resets at once, for a client may cancel all its watches.
	Burst = 5000
	// Rate is what comes back each second: 100 resets for ever, far above what controllers do.
	Rate = 1000

	// Control is the cost of a frame that is only read, and perhaps answered.
	Control = 1
	// Reset is the cost of a stream that either side ends early.
	Reset = 10
	// Refused is the cost of a head that cannot be served: a tenth of a millisecond and more.
	Refused = 100

	completed = Reset // one completed stream pays for one reset
)

// New returns a full one. Here and in Spend, now is of one clock that never goes back.
func New(now time.Duration) Budget { return Budget{Burst, now} }

// Spend takes n. It reports false when there is not so much left.
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

// Completed pays back: a request was answered.
func (b *Budget) Completed() { b.left = min(Burst, b.left+completed) }

// Last leaves n, for what is under way on a connection that is being ended.
func (b *Budget) Last(n int) { b.left = n }
