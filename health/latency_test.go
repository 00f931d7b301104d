package health

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// trio runs three healthy endpoints of one backend.
func trio(t *testing.T) (*bench, []string, []*backend) {
	t.Helper()
	ca := newAuthority(serverName)
	addresses := []string{"10.0.0.1:443", "10.0.0.2:443", "10.0.0.3:443"}
	b := startBench(t, ca, []*registry.Entry{entry(addresses...)})
	servers := make([]*backend, len(addresses))
	for i, a := range addresses {
		servers[i] = newBackend()
		b.cable.host(a).serve(t, ca, servers[i].ServeHTTP)
	}
	b.run(t)
	synctest.Wait()
	return b, addresses, servers
}

// traffic observes ten requests a second at each address. took returns the duration of each.
func (b *bench) traffic(addresses []string, d time.Duration, took func(i int) time.Duration) {
	name := b.feed.entries[0].Name
	for range int(d / (100 * time.Millisecond)) {
		for i, a := range addresses {
			if l := took(i); l > 0 {
				b.Observe(name, a, l)
			}
		}
		pass(100 * time.Millisecond)
	}
	synctest.Wait()
}

func TestSlowEndpointIsReportedAndRecovers(t *testing.T) {
	tests := []struct {
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
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			b, addresses, _ := trio(t)
			took := func(i int) time.Duration {
				if i == 0 {
					return tt.first
				}
				return tt.others
			}
			b.traffic(addresses, 5*time.Second, took)
			if b.notes.last(addresses[0]).Slow {
				t.Errorf("slow after 5 s, want 10 s")
			}
			b.traffic(addresses, 7*time.Second, took)
			check.Same(t, tt.want, b.notes.last(addresses[0]).Slow, "slow after 12 s")
			even := func(int) time.Duration { return tt.others }
			b.traffic(addresses, 8*time.Second, even)
			check.Same(t, tt.want, b.notes.last(addresses[0]).Slow, "slow after 8 s like its peers")
			b.traffic(addresses, 4*time.Second, even)
			for _, a := range addresses {
				if r := b.notes.last(a); r.Slow || r.Health != registry.Healthy {
					t.Errorf("after 12 s like its peers: %+v", r)
				}
			}
		})
	}
}

func TestOneStuckRequestMakesNoEndpointSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, addresses, _ := trio(t)
		for range 10 {
			b.traffic(addresses, 3*time.Second, func(int) time.Duration { return 5 * time.Millisecond })
			b.Observe(b.feed.entries[0].Name, addresses[0], time.Minute)
		}
		if b.notes.last(addresses[0]).Slow {
			t.Error("slow because of single requests")
		}
	})
}

func TestIdleEndpointIsJudgedByItsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, addresses, servers := trio(t)
		for _, s := range servers {
			s.delay.Store(int64(5 * time.Millisecond))
		}
		pass(time.Minute)
		servers[2].delay.Store(int64(500 * time.Millisecond))
		pass(25 * time.Second)
		if r := b.notes.last(addresses[2]); !r.Slow || r.Health != registry.Healthy {
			t.Errorf("after 25 s: %+v, want slow and healthy", r)
		}
		servers[2].delay.Store(int64(5 * time.Millisecond))
		pass(25 * time.Second)
		if r := b.notes.last(addresses[2]); r.Slow {
			t.Error("still slow 25 s after it became fast")
		}
	})
}

// Latency of live traffic counts more than that of probes: a discovery document may be cheap where
// everything else is slow.
func TestLiveTrafficOutweighsProbes(t *testing.T) {
	for name, every := range map[string]time.Duration{"many": 100 * time.Millisecond, "one at a time": 1700 * time.Millisecond} {
		bubble(t, name, func(t *testing.T) {
			b, addresses, servers := trio(t)
			for _, s := range servers {
				s.delay.Store(int64(2 * time.Millisecond))
			}
			live := func(d, slow time.Duration) {
				name := b.feed.entries[0].Name
				for i := range int(d / every) {
					// They take turns: two endpoints rarely answer within the same second.
					if a := addresses[i%3]; a == addresses[0] {
						b.Observe(name, a, slow)
					} else {
						b.Observe(name, a, 2*time.Millisecond)
					}
					pass(every)
				}
				synctest.Wait()
			}
			live(time.Minute, 200*time.Millisecond)
			if r := b.notes.last(addresses[0]); !r.Slow || r.Health != registry.Healthy {
				t.Errorf("after a minute: %+v, want slow and healthy", r)
			}
			live(time.Minute, 2*time.Millisecond)
			if b.notes.last(addresses[0]).Slow {
				t.Error("still slow a minute after it became fast")
			}
			live(time.Minute, 200*time.Millisecond)
			pass(time.Minute)
			if b.notes.last(addresses[0]).Slow {
				t.Error("still slow after a minute without traffic and with fast probes: it would never get traffic again")
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
