package pages

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// pace is the time between two points of an APIService's latency, and points how many are kept: ten minutes, as much as one looks back at when something is slow.
	pace   = 10 * time.Second
	points = 60
	// recent is how many of the last points the numbers are made of: a minute.
	recent = 6
)

// traffic follows the latencies of the backends.
type traffic struct {
	mu    sync.Mutex // guards tapes
	tapes map[string]*tape
}

// tape is one APIService's. Those without a request in ten minutes have none.
type tape struct {
	last []uint64
	// diffs are the counts of the last points, newest last.
	diffs [][]uint64
}

// follow looks at all backends at an even pace until ctx ends.
func (tr *traffic) follow(ctx context.Context, table func() *registry.Table, latencies func(*registry.Entry) []uint64) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		tr.look(table().Entries(), latencies)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (tr *traffic) look(entries []*registry.Entry, latencies func(*registry.Entry) []uint64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	known := make(map[string]*tape, len(tr.tapes))
	for _, e := range entries {
		if e.Local() {
			continue
		}
		now := latencies(e)
		if total(now) == 0 {
			continue
		}
		t := tr.tapes[e.Name]
		if t == nil {
			t = &tape{last: make([]uint64, len(now))}
		}
		t.add(now)
		known[e.Name] = t
	}
	tr.tapes = known
}

// add notes what was counted since the last time. A backend that was replaced counts from zero.
func (t *tape) add(now []uint64) {
	diff := slices.Clone(now)
	if len(t.last) == len(now) && total(t.last) <= total(now) {
		for i := range diff {
			diff[i] -= min(t.last[i], diff[i])
		}
	}
	t.last = now
	if total(diff) == 0 {
		diff = nil // most points of most backends
	}
	t.diffs = append(t.diffs, diff)
	if over := len(t.diffs) - points; over > 0 {
		t.diffs = slices.Delete(t.diffs, 0, over)
	}
}

// of returns what is known of an APIService. Nil: it had no request.
func (tr *traffic) of(name string) *answer.Traffic {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t := tr.tapes[name]
	if t == nil {
		return nil
	}
	out := &answer.Traffic{}
	minute := make([]uint64, len(t.last))
	last := t.diffs[max(len(t.diffs)-recent, 0):]
	for _, diff := range last {
		for i, n := range diff {
			minute[i] += n
		}
	}
	out.Rate = round(float64(total(minute)) / (float64(len(last)) * pace.Seconds()))
	out.P50, out.P99 = quantile(minute, .5), quantile(minute, .99)
	for _, diff := range t.diffs {
		out.Points = append(out.Points, quantile(diff, .99))
	}
	return out
}

func total(counts []uint64) uint64 {
	n := uint64(0)
	for _, c := range counts {
		n += c
	}
	return n
}

// quantile is where, in seconds, a share of what was counted lies: element i counts what took less than 2^i µs, less those before it. Within an element it is
// taken to be spread evenly.
func quantile(counts []uint64, share float64) float64 {
	all := total(counts)
	if all == 0 {
		return 0
	}
	rank, seen := share*float64(all), 0.0
	for i, c := range counts {
		if n := float64(c); seen+n >= rank && n > 0 {
			low, high := 0.0, math.Ldexp(1, i)
			if i > 0 {
				low = high / 2
			}
			return round((low + (high-low)*(rank-seen)/n) / 1e6)
		}
		seen += float64(c)
	}
	return 0
}

// round keeps three digits: the numbers know no more.
func round(v float64) float64 {
	if v <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return math.Round(v/unit) * unit
}
