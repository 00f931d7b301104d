package entrypoint

import (
	"time"
)

const (
	// quiet is how long nobody else may write before it is forgotten that somebody did. kube-apiserver's reconciler writes every 10 s.
	quiet = time.Minute
	// shortPause and longPause bound how long another writer is given way to: long enough that in-cluster clients are not thrown to and fro, short enough that the entrypoint
	// is taken over soon after the last kube-apiserver was restarted without its reconciler.
	shortPause, longPause = time.Minute, 5 * time.Minute
)

// contest decides when to give way to another writer. The zero value: nobody else writes.
type contest struct {
	strikes int           // foreign writes since it was quiet
	last    time.Time     // of the latest strike
	pause   time.Duration // how long is given way; 0: never was
	until   time.Time     // until then nothing is written
}

// paused reports whether another writer is given way to.
func (c *contest) paused(now time.Time) bool { return now.Before(c.until) }

// strike notes a foreign write. From the second one on the other is given way to: the first may be somebody's mistake.
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
