package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

func TestSample(t *testing.T) {
	at := time.Unix(0, 0)
	before := load.Snapshot{At: at, Done: 100}
	took := []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}
	after := load.Snapshot{At: at.Add(2 * time.Second), Done: 1100, Took: took}
	s, err := newSample(before, after, 20*time.Millisecond)
	if want := (sample{CPU: 20, Rate: 500, P50: 2, P99: 3}); err != nil || s != want {
		t.Errorf("%+v, %v; want %+v", s, err, want)
	}
	after.Faults = 1
	for _, bad := range []load.Snapshot{after, before} { // a fault, and no answer
		if _, err := newSample(before, bad, 0); err == nil {
			t.Errorf("%+v made a sample", bad)
		}
	}
}

// Ratios are computed within a round: here the machine was half as fast in the second. The last two
// rounds do not count.
func TestRatio(t *testing.T) {
	var r results
	for _, x := range []struct{ ours, theirs, direct float64 }{{3, 5, 1}, {6, 6, 2}, {2.5, 5, 1}, {0, 6, 2}, {4, 0, 1}} {
		r.add(single, fairlead, sample{P50: x.ours})
		r.add(single, haproxy, sample{P50: x.theirs})
		r.add(single, direct, sample{P50: x.direct})
	}
	p50 := func(s sample) float64 { return s.P50 }
	if s := ratio(r.of(single, fairlead), r.of(single, haproxy), p50); s != (spread{.5, .6, 1}) {
		t.Errorf("%+v", s)
	}
	if table := r.table(); !strings.Contains(table, "| haproxy | 5.5 | 0.5–**0.6**–1 | 0.375–**0.5**–1 |") {
		t.Error(table)
	}
}

// A process that waits ten times is scheduled at least as often.
func TestScheduled(t *testing.T) {
	_, before := scheduled(os.Getpid())
	const times = 10
	for range times {
		<-time.After(time.Millisecond)
	}
	if cpu, after := scheduled(os.Getpid()); after-before < times || cpu <= 0 {
		t.Errorf("scheduled %d times, %v in total", after-before, cpu)
	}
}
