package pages

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
	look := func(name string) *answer.Traffic {
		tr.look(both, latencies, failed)
		return tr.of(name)
	}
	if got := look("busy"); got != nil {
		t.Fatalf("%+v before the first request", got)
	}
	for _, ms := range [][]int{{3, 3, 3}, {3, 3, 3, 100}, {3, 3, 3, 100}} {
		counts["busy"] = counted(ms...)
		look("busy")
	}
	got := tr.of("busy")
	check.Same(t, "0.0667 0.00341 0.128 [0.00408 0.13 0]", fmt.Sprintf("%.3g %.3g %.3g %.3g", got.Rate, got.P50, got.P99, got.Points), "rate, quantiles and points")
	check.Same(t, true, tr.of("idle") == nil && tr.of("local") == nil, "there is traffic of a backend without requests")
	counts["busy"] = counted(1)
	check.Same(t, .00102, look("busy").Points[3], "the point of a replaced backend")
	for range 2 * points {
		got = look("busy")
	}
	check.Same(t, true, len(got.Points) == points && got.Rate == 0, "%+v", got)
	// A backend that only fails has traffic, too, and a replaced entry counts from zero.
	failures["idle"] = 1
	one := answer.APIService{Verdict: registry.Verdict{Status: "True"}, Traffic: look("idle")}
	check.Same(t, "", one.Fails(), "what one failure says of its minute")
	failures["idle"] = 30
	look("idle")
	failures["idle"] = 10
	if got := look("idle"); got == nil || fmt.Sprintf("%.3g", got.Errors) != "0.667" || got.Rate != 0 {
		t.Errorf("%+v for a backend that only fails", got)
	}
	both = both[1:]
	if got := look("busy"); got != nil {
		t.Errorf("%+v for a removed APIService", got)
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

// The busiest callers are a document and a page. Parameters that mean nothing are refused, not ignored.
func TestBusiest(t *testing.T) {
	s := newStand(t)
	for query, want := range map[string]int{
		"": 200, "?by=user&window=hour&sort=refused&limit=3": 200, "?by=name": 400, "?window=day": 400, "?sort=name": 400, "?limit=x": 400, "?limit=0": 400, "?limit=101": 400,
	} {
		w, text := s.get(t, "/busiest"+query)
		check.Same(t, want, w.Code, "%q: %s", query, text)
		if want == http.StatusOK {
			check.Has(t, text, `"from": "`, `"rows": []`, `"watches": 0`)
		}
	}
	_, text := s.get(t, "/fairlead/busiest/")
	check.Has(t, text, "Busiest callers of the last minute", "0 requests (0.0/s), 0.0Mi in, 0.0Mi out, 0 watches open", "<td>others</td>", `href="../busiest"`, `href="../style.css"`)
}
