package health

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// trio runs three endpoints of one APIService. Each probe takes its endpoint's delay.
func trio(t *testing.T) (b *bench, addresses []string, delays map[string]*atomic.Int64) {
	t.Helper()
	addresses, delays = []string{at, "10.0.0.2:443", "10.0.0.3:443"}, map[string]*atomic.Int64{}
	for _, a := range addresses {
		delays[a] = &atomic.Int64{}
	}
	b, _ = serve(t, []*registry.Entry{entry(addresses...)}, func(_ http.ResponseWriter, r *http.Request) {
		lasts(r, time.Duration(delays[r.Host].Load()))
	})
	synctest.Wait()
	return b, addresses, delays
}

// traffic observes requests at all addresses, one after the other, for a while. took returns the
// duration of each at an address.
func (b *bench) traffic(every, d time.Duration, addresses []string, took func(i int) time.Duration) {
	for i := range int(d / every) {
		b.Observe(b.feed.entries[0].Name, addresses[i%len(addresses)], took(i%len(addresses)))
		pass(every)
	}
}

func TestSlowEndpointIsReportedAndRecovers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others time.Duration
		first  time.Duration
		want   bool
	}{
		{"a hundred times slower", 10 * time.Millisecond, time.Second, true},
		{"a hundred times slower and very slow", 60 * time.Millisecond, 6 * time.Second, true},
		{"more than ten times slower", 10 * time.Millisecond, 105 * time.Millisecond, true},
		{"nine times slower", 10 * time.Millisecond, 90 * time.Millisecond, false},
		{"far slower, but fast", 100 * time.Microsecond, 19 * time.Millisecond, false},
		{"all slow", 5 * time.Second, 5 * time.Second, false},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			b, addresses, _ := trio(t)
			for _, step := range []struct {
				lasts       time.Duration
				first       time.Duration
				slow        bool
				description string
			}{
				{5 * time.Second, tt.first, false, "5 s, want 10 s"},
				{7 * time.Second, tt.first, tt.want, "12 s"},
				{8 * time.Second, tt.others, tt.want, "8 s like its peers"},
				{4 * time.Second, tt.others, false, "12 s like its peers"},
			} {
				b.traffic(40*time.Millisecond, step.lasts, addresses, func(i int) time.Duration {
					if i == 0 {
						return step.first
					}
					return tt.others
				})
				for _, a := range addresses {
					if r := b.notes.of(entry(), a); r.Slow != (step.slow && a == at) || r.Health != registry.Healthy {
						t.Errorf("after %s: %+v", step.description, r)
					}
				}
			}
		})
	}
}

func TestOneStuckRequestMakesNoEndpointSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, addresses, _ := trio(t)
		for range 10 {
			b.traffic(40*time.Millisecond, 3*time.Second, addresses, func(int) time.Duration { return 5 * time.Millisecond })
			b.Observe(entry().Name, at, time.Minute)
		}
		if b.notes.of(entry()).Slow {
			t.Error("slow because of single requests")
		}
	})
}

func TestIdleEndpointIsJudgedByItsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, delays := trio(t)
		for _, d := range delays {
			d.Store(int64(5 * time.Millisecond))
		}
		pass(time.Minute)
		delays[at].Store(int64(500 * time.Millisecond))
		pass(25 * time.Second)
		if r := b.notes.of(entry()); !r.Slow || r.Health != registry.Healthy {
			t.Errorf("after 25 s: %+v, want slow and healthy", r)
		}
		delays[at].Store(int64(5 * time.Millisecond))
		pass(25 * time.Second)
		if b.notes.of(entry()).Slow {
			t.Error("still slow 25 s after it became fast")
		}
	})
}

// A slow group-version does not make the others slow.
func TestOneSlowGroupVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entries := family(3, false, at, "10.0.0.2:443")
		b, _ := serve(t, entries, func(_ http.ResponseWriter, r *http.Request) {
			if r.Host == at && r.URL.Path == pathOf(entries[0]) {
				lasts(r, 300*time.Millisecond)
			}
			lasts(r, time.Millisecond)
		})
		pass(5 * time.Minute)
		for _, r := range b.notes.all() {
			if r.Slow && (r.Name != entries[0].Name || r.Address != at) {
				t.Errorf("%+v", r)
			}
		}
		if r := b.notes.of(entries[0]); !r.Slow {
			t.Errorf("the slow one is not reported slow: %+v", r)
		}
	})
}

// Latency of live traffic counts more than that of probes: a discovery document may be cheap where
// everything else is slow.
func TestLiveTrafficOutweighsProbes(t *testing.T) {
	// One at a time, two endpoints rarely answer within the same second.
	for name, every := range map[string]time.Duration{"many": 100 * time.Millisecond, "one at a time": 1700 * time.Millisecond} {
		bubble(t, name, func(t *testing.T) {
			b, addresses, delays := trio(t)
			for _, d := range delays {
				d.Store(int64(2 * time.Millisecond))
			}
			for _, step := range []struct {
				first time.Duration
				idle  time.Duration // afterwards
				slow  bool
			}{
				{200 * time.Millisecond, 0, true},
				{2 * time.Millisecond, 0, false},
				// Otherwise it would never get traffic again.
				{200 * time.Millisecond, time.Minute, false},
			} {
				b.traffic(every, time.Minute, addresses, func(i int) time.Duration {
					if i == 0 {
						return step.first
					}
					return 2 * time.Millisecond
				})
				pass(step.idle)
				if r := b.notes.of(entry()); r.Slow != step.slow || r.Health != registry.Healthy {
					t.Errorf("after a minute of %v and %v without traffic: %+v", step.first, step.idle, r)
				}
			}
		})
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	p := &Prober{}
	c := &claim{}
	p.index.Store(&index{claims: map[string]peers{"v1.example.com": {at: c}}})
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
