package entrypoint

import (
	"time"
)

const (
	// quiet is how long after its last write another writer is forgotten. kube-apiserver's
	// reconciler writes every 10 s.
	quiet = time.Minute
	// shortPause and longPause bound how long we give way to another writer: long enough that
	// in-cluster clients are not sent back and forth, short enough that we take over soon after the
	// last kube-apiserver was restarted without its reconciler.
	shortPause, longPause = time.Minute, 5 * time.Minute
)

// contest decides when to give way to another writer. The zero value: nobody else writes.
type contest struct {
	strikes int           // foreign writes since it was quiet
	last    time.Time     // of the latest strike
	pause   time.Duration // how long we give way; 0: not yet
	until   time.Time     // until then nothing is written
}

// paused reports whether we give way to another writer.
func (c *contest) paused(now time.Time) bool { return now.Before(c.until) }

// strike notes a foreign write. We give way from the second one on: the first may be a mistake.
func (c *contest) strike(now time.Time) {
	c.strikes++
	c.last = now
	if c.strikes < 2 {
		return
	}
	c.pause = min(max(2*c.pause, shortPause), longPause)
	c.until = now.Add(c.pause)
	c.last = c.until // what is quiet is only seen after the pause
	c.strikes = 1    // the next one, after the pause, is enough
}

// settled reports whether it has become quiet, once.
func (c *contest) settled(now time.Time) bool {
	if c.strikes == 0 || now.Sub(c.last) < quiet {
		return false
	}
	was := c.pause > 0
	*c = contest{}
	return was
}
