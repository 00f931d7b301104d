package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

func TestSample(t *testing.T) {
	at := time.Unix(0, 0)
	a := gauge{Snapshot: load.Snapshot{At: at, Done: 100}, cpu: time.Second}
	b := gauge{Snapshot: load.Snapshot{At: at.Add(2 * time.Second), Done: 1100}, cpu: 1020 * time.Millisecond}
	s, err := newSample(a, b, []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond})
	if want := (sample{CPU: 20, Rate: 500, P50: 2, P99: 3}); err != nil || s != want {
		t.Errorf("%+v, %v; want %+v", s, err, want)
	}
	b.Faults = 1
	if _, err := newSample(a, b, nil); err == nil {
		t.Error("a fault made a sample")
	}
	if _, err := newSample(a, a, nil); err == nil {
		t.Error("nothing made a sample")
	}
}

// Ratios are computed within a round: here the machine was half as fast in the second. The last two
// rounds do not count.
func TestRatio(t *testing.T) {
	r := &results{}
	for round, x := range []struct{ ours, theirs, direct float64 }{{3, 5, 1}, {6, 6, 2}, {2.5, 5, 1}, {0, 6, 2}, {4, 0, 1}} {
		r.add(single, fairlead, round, sample{P50: x.ours})
		r.add(single, haproxy, round, sample{P50: x.theirs})
		r.add(single, direct, round, sample{P50: x.direct})
	}
	p50 := func(s sample) float64 { return s.P50 }
	if s := ratio(r.of(single, fairlead), r.of(single, haproxy), p50); s != (spread{.5, .6, 1}) {
		t.Errorf("%+v", s)
	}
	if table := r.table(); !strings.Contains(table, "| haproxy | 5–**5.5**–6 | 0.375–**0.5**–1 |") {
		t.Error(table)
	}
}
