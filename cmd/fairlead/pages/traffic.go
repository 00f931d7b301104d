package pages

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// pace is the time between two points of an APIService's latency, and points is how many are
	// kept: ten minutes, as far as people look back when something is slow.
	pace   = 10 * time.Second
	points = 60
	// recent is how many of the last points the numbers cover: a minute.
	recent = 6
)

// traffic records the latencies of the backends.
type traffic struct {
	mu      sync.Mutex // guards records
	records map[string]*record
}

// record belongs to one APIService. An APIService without any request yet has none.
type record struct {
	last []uint64
	// diffs are the counts of each of the last points, newest last.
	diffs [][]uint64
	// failed counts failures so far, fails those at each point of the last minute.
	failed uint64
	fails  []uint64
}

// look reads the counts of all backends, at a fixed interval.
func (tr *traffic) look(entries []*registry.Entry, latencies func(*registry.Entry) []uint64, failed func(*registry.Entry) uint64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	known := make(map[string]*record, len(tr.records))
	for _, e := range entries {
		if e.Local() {
			continue
		}
		now, bad := latencies(e), failed(e)
		if total(now) == 0 && bad == 0 && tr.records[e.Name] == nil {
			continue
		}
		t := tr.records[e.Name]
		if t == nil {
			t = &record{last: make([]uint64, len(now))}
		}
		t.add(now)
		t.fail(bad)
		known[e.Name] = t
	}
	tr.records = known
}

// add records what was counted since the last call. A replaced backend starts from zero.
func (t *record) add(now []uint64) {
	diff := slices.Clone(now)
	if len(t.last) == len(now) && total(t.last) <= total(now) {
		for i := range diff {
			diff[i] -= min(t.last[i], diff[i])
		}
	}
	t.last = now
	if total(diff) == 0 {
		diff = nil // saves memory: most backends are idle
	}
	t.diffs = append(t.diffs, diff)
	if over := len(t.diffs) - points; over > 0 {
		t.diffs = slices.Delete(t.diffs, 0, over)
	}
}

// fail records what has failed since the last call. A replaced entry starts from zero.
func (t *record) fail(now uint64) {
	if now < t.failed {
		t.failed = 0
	}
	t.fails = append(t.fails, now-t.failed)
	t.failed = now
	t.fails = t.fails[max(len(t.fails)-recent, 0):]
}

// of returns the traffic of an APIService. Nil means that it had no requests.
func (tr *traffic) of(name string) *answer.Traffic {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t := tr.records[name]
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
	out.Errors = round(float64(total(t.fails)) / (float64(len(t.fails)) * pace.Seconds()))
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

// quantile returns a quantile in seconds: element i counts latencies of less than 2^i µs, without
// those of earlier elements. Within an element it assumes an even distribution.
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

// round rounds to three digits: the counts are no more precise.
func round(v float64) float64 {
	if v <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return math.Round(v/unit) * unit
}
