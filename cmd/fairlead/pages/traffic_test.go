package pages

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// counted returns latencies of whole milliseconds as backends count them.
func counted(ms ...int) []uint64 {
	out := make([]uint64, 28)
	for _, m := range ms {
		i := 0
		for 1<<i <= m*1000 {
			i++
		}
		out[i]++
	}
	return out
}

func TestQuantile(t *testing.T) {
	for _, tc := range []struct {
		name   string
		counts []uint64
		share  float64
		low    float64
		high   float64
	}{
		{"nothing", counted(), .99, 0, 0},
		{"one", counted(3), .99, .002, .0041},
		{"median", counted(1, 1, 1, 500), .5, .0005, .0011},
		{"tail", counted(1, 1, 1, 500), .99, .25, .53},
	} {
		if got := quantile(tc.counts, tc.share); got < tc.low || got > tc.high {
			t.Errorf("%s: %v, want between %v and %v", tc.name, got, tc.low, tc.high)
		}
	}
	for v, want := range map[float64]float64{0: 0, 1.23456: 1.23, 123456: 123000, .000123456: .000123} {
		if got := round(v); math.Abs(got-want) > want*1e-9 {
			t.Errorf("round(%v) = %v", v, got)
		}
	}
}

// Traffic is the rate of the backend's counters. It starts again after a replacement, and removed
// APIServices are forgotten.
func TestTraffic(t *testing.T) {
	entry := func(name string) *registry.Entry {
		return &registry.Entry{Name: name, GroupVersion: schema.GroupVersion{Group: name}, Backend: &registry.Backend{}}
	}
	counts := map[string][]uint64{"busy": counted(), "idle": counted()}
	latencies := func(e *registry.Entry) []uint64 { return counts[e.Name] }
	failures := map[string]uint64{}
	failed := func(e *registry.Entry) uint64 { return failures[e.Name] }
	var tr traffic
	both := []*registry.Entry{entry("busy"), entry("idle"), {Name: "local"}}
	tr.look(both, latencies, failed)
	if got := tr.of("busy"); got != nil {
		t.Fatalf("%+v before the first request", got)
	}
	counts["busy"] = counted(3, 3, 3)
	tr.look(both, latencies, failed)
	counts["busy"] = counted(3, 3, 3, 100)
	tr.look(both, latencies, failed)
	tr.look(both, latencies, failed)
	got := tr.of("busy")
	if diff := cmp.Diff([]bool{true, true, false}, []bool{got.Points[0] > .002 && got.Points[0] < .005, got.Points[1] > .06 && got.Points[1] < .14, got.Points[2] > 0}); diff != "" || len(got.Points) != 3 {
		t.Errorf("points %v", got.Points)
	}
	if got.Rate != round(4./30) || got.P50 > .005 || got.P99 < .06 || tr.of("idle") != nil || tr.of("local") != nil {
		t.Errorf("%+v", got)
	}
	counts["busy"] = counted(1)
	tr.look(both, latencies, failed)
	if got := tr.of("busy").Points[3]; got <= 0 || got > .0011 {
		t.Errorf("%v for a replaced backend", got)
	}
	for range 2 * points {
		tr.look(both, latencies, failed)
	}
	if got := tr.of("busy"); len(got.Points) != points || got.Rate != 0 {
		t.Errorf("%+v", got)
	}
	// A backend that only fails has traffic, too, and a replaced entry counts from zero.
	failures["idle"] = 30
	tr.look(both, latencies, failed)
	failures["idle"] = 10
	tr.look(both, latencies, failed)
	if got := tr.of("idle"); got == nil || got.Errors != 2 || got.Rate != 0 {
		t.Errorf("%+v for a backend that only fails", got)
	}
	tr.look(both[1:], latencies, failed)
	if got := tr.of("busy"); got != nil {
		t.Errorf("%+v for a removed APIService", got)
	}
}

func TestLeft(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		end           time.Time
		want, urgency string
	}{
		{time.Time{}, "–", "dim"},
		{now.Add(-time.Second), "expired", "bad"},
		{now, "expired", "bad"},
		{now.Add(59 * time.Minute), "0h", "bad"},
		{now.Add(23*time.Hour + 59*time.Minute), "23h", "bad"},
		{now.Add(24 * time.Hour), "1d", "warn"},
		{now.Add(7*24*time.Hour - time.Second), "6d", "warn"},
		{now.Add(7 * 24 * time.Hour), "7d", "dim"},
		{now.Add(400*24*time.Hour + time.Hour), "400d", "dim"},
	} {
		check.Same(t, c.want, answer.Left(now, c.end), "%s", c.end)
		check.Same(t, c.urgency, urgency(now, c.end), "urgency of %s", c.end)
	}
}

func TestStamp(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 30, 0, 0, time.FixedZone("east", 3600)) // still February in UTC
	for want, at := range map[string]time.Time{
		"23:29:59":     now.Add(-time.Second),
		"00:30:00":     now.Add(-23 * time.Hour),
		"Feb 27 23:29": now.Add(-24*time.Hour - time.Second),
	} {
		check.Same(t, want, stamp(now, at), "%s", at)
	}
}
