package health

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestObserveDoesNotAllocate(t *testing.T) {
	p := &Prober{}
	c := &claim{}
	p.index.Store(&map[string]peers{"v1.example.com": {at: c}})
	check.Same(t, 0, testing.AllocsPerRun(100, func() { p.Observe("v1.example.com", at, time.Millisecond) }), "allocations")
	if c.latency.count.Load() == 0 {
		t.Error("nothing observed")
	}
}

func TestSlowNeedsTimeAndWitnesses(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	type step struct {
		after time.Duration
		slow  bool
		want  bool // slow after the step
	}
	const s = time.Second
	for name, steps := range map[string][]step{
		"two witnesses, far apart": {{0, true, false}, {20 * s, true, false}, {21 * s, true, true}},
		"many, but too soon":       {{0, true, false}, {1 * s, true, false}, {2 * s, true, false}, {9 * s, true, false}, {10 * s, true, true}},
		"one that disagrees":       {{0, true, false}, {5 * s, true, false}, {9 * s, false, false}, {11 * s, true, false}, {12 * s, true, false}, {20 * s, true, false}},
		"and back, for as long":    {{0, true, false}, {5 * s, true, false}, {10 * s, true, true}, {11 * s, false, true}, {12 * s, false, true}, {21 * s, false, false}},
		"and back": {
			{0, true, false}, {5 * s, true, false}, {10 * s, true, true}, {11 * s, false, true}, {12 * s, true, true},
			{13 * s, false, true}, {18 * s, false, true}, {23 * s, false, false},
		},
	} {
		var l latency
		for i, step := range steps {
			was := l.slow.Load()
			changed := l.update(start.Add(step.after), step.slow, 0)
			if slow := l.slow.Load(); changed != (slow != was) || slow != step.want {
				t.Errorf("%s, step %d: slow %v, changed %v, want slow %v", name, i, slow, changed, step.want)
			}
		}
	}
}

// answering returns a claim whose latencies were last these; zero means none.
func answering(live, probe time.Duration, newLive, newProbe bool) *claim {
	c := &claim{}
	c.latency.live, c.latency.probe, c.latency.newLive, c.latency.newProbe = live, probe, newLive, newProbe
	return c
}

// Of an endpoint with live traffic like its peers', probes say nothing.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		of             *claim
		value, typical time.Duration
	}{
		{answering(9, 1, true, true), 9, 4},
		{answering(9, 1, false, true), 0, 0},
		{answering(0, 1, false, true), 1, 2},
		{answering(0, 1, false, false), 0, 0},
	} {
		value, typical := compare([]*claim{tt.of, answering(4, 2, false, false), answering(4, 2, false, false)}, tt.of)
		check.Same(t, [2]time.Duration{tt.value, tt.typical}, [2]time.Duration{value, typical}, "of %s and %s", tt.of.latency.live, tt.of.latency.probe)
	}
}

// The median of its peers excludes the endpoint itself, and those without data.
func TestMedianOfOthers(t *testing.T) {
	for _, tt := range []struct {
		first  time.Duration
		others []time.Duration
		want   time.Duration
	}{
		{100, nil, 0},
		{100, []time.Duration{0}, 0},
		{100, []time.Duration{0, 20}, 20},
		{100, []time.Duration{20, 30}, 20},
		{1, []time.Duration{20, 30, 40}, 30},
	} {
		all := []*claim{answering(0, tt.first, false, false)}
		for _, d := range tt.others {
			all = append(all, answering(0, d, false, false))
		}
		check.Same(t, tt.want, medianOfOthers(all, all[0], func(l *latency) time.Duration { return l.probe }), "%d among %d", tt.first, tt.others)
	}
}
