package health

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
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

func TestOpinionNeedsTimeAndWitnesses(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	type step struct {
		after time.Duration
		slow  bool
		want  bool // the opinion after the step
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
		var o opinion
		for i, step := range steps {
			was := o.slow
			if changed := o.update(start.Add(step.after), step.slow, 0); changed != (o.slow != was) || o.slow != step.want {
				t.Errorf("%s, step %d: slow %v, changed %v, want slow %v", name, i, o.slow, changed, step.want)
			}
		}
	}
}

// Of an endpoint with live traffic like its peers', probes say nothing.
func TestCompare(t *testing.T) {
	other := sample{live: 4, probe: 2}
	for _, tt := range []struct {
		of             sample
		value, typical time.Duration
	}{
		{sample{live: 9, newLive: true, probe: 1, newProbe: true}, 9, 4},
		{sample{live: 9, probe: 1, newProbe: true}, 0, 0},
		{sample{probe: 1, newProbe: true}, 1, 2},
		{sample{probe: 1}, 0, 0},
	} {
		value, typical := compare([]sample{tt.of, other, other}, 0)
		check.Same(t, [2]time.Duration{tt.value, tt.typical}, [2]time.Duration{value, typical}, "%+v", tt.of)
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
		samples := []sample{{probe: tt.first}}
		for _, d := range tt.others {
			samples = append(samples, sample{probe: d})
		}
		check.Same(t, tt.want, medianOfOthers(samples, 0, func(s sample) time.Duration { return s.probe }),
			"%d among %d", tt.first, tt.others)
	}
}
