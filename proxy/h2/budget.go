package h2

import "time"

// Budget pays for what the peer of a connection has us do without moving a request forward. It refills with time and with completed requests, and bounds floods of every
// kind: PING, SETTINGS and empty DATA (CVE-2019-9512, -9515, -9518), rapid reset (CVE-2023-44487) and streams that the peer makes us reset (CVE-2025-8671). The net/http
// lane uses it too. It is for one goroutine at a time.
type Budget struct {
	left int
	at   time.Duration // when time was last added
}

// What a budget holds, and what it pays for.
const (
	BudgetBurst = 5000 // 500 resets at once: a client may cancel all its watches
	BudgetRate  = 1000 // a second: 100 resets for ever, far above what controllers do

	CostReset     = 10
	CostRefused   = 100 // a head above the limit, a tenth of a millisecond and more
	costControl   = 1
	costUnwelcome = 60 // 100 at once and 20 a second, less what the stream's end pays back
	gainCompleted = 10 // one completed stream pays for one reset
)

// NewBudget returns a full one. Here and in Spend, now is of one clock that never goes back.
func NewBudget(now time.Duration) Budget { return Budget{BudgetBurst, now} }

// Spend takes n. It reports false when there is not so much left.
func (b *Budget) Spend(n int, now time.Duration) bool {
	if b.left < n {
		const one = time.Second / BudgetRate
		came := (now - b.at) / one
		b.left = min(BudgetBurst, b.left+int(came))
		b.at += came * one
	}
	b.left -= n
	return b.left >= 0
}

// Completed pays back: a request was answered.
func (b *Budget) Completed() { b.left = min(BudgetBurst, b.left+gainCompleted) }
