package health

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	judgeEvery    = time.Second // how often latencies are compared
	slowWitnesses = 3           // how many comparisons must agree: one stuck request says nothing
	// slowFactor and slowFor make an endpoint slow: its latency is slowFactor times its peers' median, for slowFor.
	// Recovery takes as long. Ten times is more than nodes and zones differ by.
	slowFactor = 10
	slowFor    = 10 * time.Second
	// slowFloor is the latency up to which no endpoint is slow: below it ten times the median is noise.
	slowFloor = 20 * time.Millisecond
	logUnit   = 1 << 20 // of the sum of logarithms: six digits of a latency
)

// latency is how fast an endpoint answers. Any goroutine adds to the first fields and reads slow; one has the rest.
type latency struct {
	sum, count atomic.Int64 // of live traffic since the last comparison, sum of logarithms in logUnit, see Observe
	last       atomic.Int64 // of the last probe, until the next comparison

	live, probe       time.Duration // the latest; zero means none yet, and of live traffic none for slowFor
	newLive, newProbe bool          // since the last comparison
	lived             time.Time     // when live was new
	slow              atomic.Bool
	since             time.Time // since when comparisons contradict slow; zero if the last one agreed
	witnesses         int       // how many comparisons contradict slow
}

func (l *latency) probed(d time.Duration) { l.last.Store(max(int64(d), 1)) }

// judgeLatencies compares the endpoints of each APIService that has several until ctx ends.
func (p *Prober) judgeLatencies(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, endpoints := range *p.index.Load() {
			if len(endpoints) > 1 {
				judge(time.Now(), endpoints)
			}
		}
	}, judgeEvery)
}

func judge(now time.Time, endpoints peers) {
	healthy, slows := make([]*claim, 0, len(endpoints)), 0
	lives, probes := []time.Duration{0}, []time.Duration{0} // see medianOfOthers
	for _, c := range endpoints {
		c.latency.take(now)
		if c.healthy.Load() && !c.target.key.server { // backend.Local keeps no Slow: it would be told again and again
			healthy = append(healthy, c)
			lives, probes = append(lives, c.latency.live), append(probes, c.latency.probe)
			if c.latency.slow.Load() {
				slows++
			}
		}
	}
	slices.Sort(lives)
	slices.Sort(probes)
	for _, c := range healthy {
		value, typical := compare(&c.latency, lives, probes)
		room := 2*(slows+1) <= len(healthy) // half of all get what the others do not
		slow := value > max(slowFactor*typical, slowFloor) && (room || c.latency.slow.Load())
		if typical > 0 && c.latency.update(now, slow, value) {
			slows++ // also for one that is no longer slow: the others become so a second later
			c.target.poke()
		}
	}
}

func (l *latency) take(now time.Time) {
	// An observation between the two swaps of live traffic counts by half in the next: a sum of zero shows that.
	n, sum, probe := l.count.Swap(0), l.sum.Swap(0), l.last.Swap(0)
	if l.newLive = n > 0 && sum > 0; l.newLive {
		l.live, l.lived = time.Duration(min(math.Exp2(float64(sum)/float64(n)/logUnit), float64(time.Hour))), now
	} else if now.Sub(l.lived) > slowFor {
		l.live = 0
	}
	if l.newProbe = probe > 0; l.newProbe {
		l.probe = time.Duration(probe)
	}
}

// compare returns the latency of an endpoint and the median of its peers: of live traffic where both
// sides have some, else of probes. Typical is zero when nothing is new. Where there is live traffic
// probes do not count: a discovery document may be cheap where everything else is slow.
func compare(l *latency, lives, probes []time.Duration) (value, typical time.Duration) {
	if l.live > 0 {
		typical = medianOfOthers(lives, l.live)
	}
	switch {
	case typical > 0 && l.newLive:
		return l.live, typical
	case typical == 0 && l.newProbe:
		return l.probe, medianOfOthers(probes, l.probe)
	}
	return 0, 0
}

// medianOfOthers returns that of sorted values, without own and zeros, of which there is one at least: zero if there is
// no other, of an even number the lower middle one.
func medianOfOthers(all []time.Duration, own time.Duration) time.Duration {
	first, _ := slices.BinarySearch(all, 1)
	at := first + (len(all)-first-2)>>1 // without others the last zero: a shift rounds down
	if own <= all[at] {
		at++
	}
	return all[at]
}

// update adds a comparison and reports whether it changed slow. One that agrees resets those that did not.
func (l *latency) update(now time.Time, slow bool, value time.Duration) (changed bool) {
	if slow == l.slow.Load() {
		l.since, l.witnesses = time.Time{}, 0
		return false
	}
	if l.witnesses++; l.witnesses == 1 {
		l.since = now
		if slow {
			l.since = now.Add(-min(value, slowFor/2)) // such a response has been slow since its request
		}
	}
	if l.witnesses < slowWitnesses || now.Sub(l.since) < slowFor {
		return false
	}
	l.since, l.witnesses = time.Time{}, 0
	l.slow.Store(slow)
	return true
}
