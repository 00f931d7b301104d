package health

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// judgeEvery is how often latencies are compared.
	judgeEvery = time.Second
	// slowFactor and slowFor make an endpoint slow: its latency is slowFactor times its peers' median, for slowFor.
	// Recovery takes as long. Ten times is more than nodes and zones differ by.
	slowFactor = 10
	slowFor    = 10 * time.Second
	// slowFloor is the latency up to which no endpoint is slow, whatever its peers do: below it ten
	// times the median is noise.
	slowFloor = 20 * time.Millisecond
	// slowWitnesses is how many comparisons must agree: one stuck request says nothing.
	slowWitnesses = 3
)

// latency collects how fast an endpoint answers, by any goroutine. opinion is the comparing one's.
type latency struct {
	sum, count atomic.Int64 // of live traffic, in nanoseconds, since the last comparison
	probe      atomic.Int64 // of the last probe, until the next comparison

	opinion opinion
}

// opinion is what the comparisons of one endpoint have shown.
type opinion struct {
	probe     time.Duration // latest; zero means none yet
	live      time.Duration // latest of live traffic; zero means none for slowFor
	lived     time.Time     // when live was new
	slow      bool          // as the claim has it
	since     time.Time     // since when comparisons contradict slow; zero if the last one agreed
	witnesses int           // how many comparisons contradict slow
}

func (l *latency) probed(d time.Duration) { l.probe.Store(max(int64(d), 1)) }

// sample is the latency of one endpoint at the time of a comparison.
type sample struct {
	claim             *claim
	live, probe       time.Duration // the latest; zero means none
	newLive, newProbe bool          // new since the last comparison
}

// judgeLatencies compares the endpoints of each APIService that has several until ctx ends.
func (p *Prober) judgeLatencies(ctx context.Context) {
	for tick := time.Tick(judgeEvery); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick:
			for _, endpoints := range *p.index.Load() {
				if len(endpoints) > 1 {
					judge(now, endpoints)
				}
			}
		}
	}
}

func judge(now time.Time, claims peers) {
	samples := make([]sample, 0, len(claims))
	for _, c := range claims {
		s := c.latency.take(now)
		s.claim = c
		if c.healthy.Load() {
			samples = append(samples, s)
		}
	}
	for i, s := range samples {
		value, typical := compare(samples, i)
		if typical == 0 {
			continue
		}
		slow := value > slowFactor*typical && value > slowFloor
		if s.claim.latency.opinion.update(now, slow, value) {
			s.claim.slow.Store(s.claim.latency.opinion.slow)
			s.claim.target.poke()
		}
	}
}

func (l *latency) take(now time.Time) sample {
	o := &l.opinion
	s := sample{}
	// The two swaps are not atomic together: an observation in between moves into the next sample
	// by half. A sum of zero shows that.
	if n, sum := l.count.Swap(0), l.sum.Swap(0); n > 0 && sum > 0 {
		o.live, o.lived, s.newLive = time.Duration(sum/n), now, true
	} else if now.Sub(o.lived) > slowFor {
		o.live = 0
	}
	if d := l.probe.Swap(0); d > 0 {
		o.probe, s.newProbe = time.Duration(d), true
	}
	s.live, s.probe = o.live, o.probe
	return s
}

// compare returns the latency of samples[i] and the median of its peers: of live traffic where both
// sides have some, else of probes. Typical is zero when nothing is new. Where there is live traffic
// probes do not count: a discovery document may be cheap where everything else is slow.
func compare(samples []sample, i int) (value, typical time.Duration) {
	s := samples[i]
	if s.live > 0 {
		typical = medianOfOthers(samples, i, func(o sample) time.Duration { return o.live })
	}
	switch {
	case typical > 0 && s.newLive:
		return s.live, typical
	case typical == 0 && s.newProbe:
		return s.probe, medianOfOthers(samples, i, func(o sample) time.Duration { return o.probe })
	}
	return 0, 0
}

// medianOfOthers returns zero if no other has a value, of an even number the lower middle one.
func medianOfOthers(samples []sample, i int, of func(sample) time.Duration) time.Duration {
	values := make([]time.Duration, 0, len(samples))
	for j, o := range samples {
		if d := of(o); j != i && d > 0 {
			values = append(values, d)
		}
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// update adds one comparison and reports whether it changed the opinion. A comparison that agrees
// with the opinion resets all that contradicted it.
func (o *opinion) update(now time.Time, slow bool, value time.Duration) (changed bool) {
	if slow == o.slow {
		o.since, o.witnesses = time.Time{}, 0
		return false
	}
	if o.witnesses++; o.witnesses == 1 {
		o.since = now
		if slow {
			o.since = now.Add(-min(value, slowFor/2)) // such a response has been slow since its request
		}
	}
	if o.witnesses < slowWitnesses || now.Sub(o.since) < slowFor {
		return false
	}
	o.slow, o.since, o.witnesses = slow, time.Time{}, 0
	return true
}
