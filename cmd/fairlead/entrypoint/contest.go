package entrypoint

import (
	"time"
)

const (
	// quiet is the time without foreign writes after which another writer is forgotten.
	// kube-apiserver's reconciler writes every 10 s.
	quiet = time.Minute
	// shortPause and longPause bound how long we give way to another writer: long enough that
	// in-cluster clients do not switch back and forth, short enough that we take over soon after
	// the last kube-apiserver was restarted without its reconciler.
	shortPause, longPause = time.Minute, 5 * time.Minute
)

// contest decides when to give way to another writer. The zero value means there is none.
type contest struct {
	strikes int           // foreign writes since the last quiet time
	last    time.Time     // of the latest strike
	pause   time.Duration // how long we give way; zero means not yet
	until   time.Time     // we write nothing before
}

// paused reports whether we give way to another writer.
func (c *contest) paused(now time.Time) bool { return now.Before(c.until) }

// strike counts a foreign write. We give way from the second one on: the first may be a mistake.
func (c *contest) strike(now time.Time) {
	c.strikes++
	c.last = now
	if c.strikes < 2 {
		return
	}
	c.pause = min(max(2*c.pause, shortPause), longPause)
	c.until = now.Add(c.pause)
	c.last = c.until // the quiet time starts after the pause
	c.strikes = 1    // one more after the pause is enough
}

// settled reports, once, that a conflict has ended.
func (c *contest) settled(now time.Time) bool {
	if c.strikes == 0 || now.Sub(c.last) < quiet {
		return false
	}
	was := c.pause > 0
	*c = contest{}
	return was
}
