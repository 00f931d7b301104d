package policy

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// everybody is a match of any request.
func everybody() flowcontrolv1.PolicyRulesWithSubjects {
	return flowcontrolv1.PolicyRulesWithSubjects{Subjects: []flowcontrolv1.Subject{{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "*"}}}}
}

func limited(tb testing.TB, r AccessRule) *Gate {
	tb.Helper()
	r.Name, r.Match = "r", everybody()
	return compiled(tb, &r).All()[0]
}

// reloaded compiles rules as a new policy after prev.
func reloaded(tb testing.TB, prev *Gates, rules ...AccessRule) *Gates {
	tb.Helper()
	g := NewGates(prev)
	for i := range rules {
		rules[i].Match = everybody()
		check.Same(tb, 0, len(g.Add(&rules[i], "here", field.NewPath("rules").Index(i), false)), "faults of rule %d", i)
	}
	g.Compile()
	return g
}

// passes returns how many of n requests of a caller pass at a time.
func passes(g *Gate, from bound.Source, now time.Time, n int) (passed int) {
	for range n {
		if _, _, ok := g.Enter(from, now); ok {
			passed++
		}
	}
	return passed
}

func TestRate(t *testing.T) {
	begin := time.Now()
	jane, john := bound.Source{User: "jane"}, bound.Source{User: "john"}
	for name, tc := range map[string]struct {
		rule  AccessRule
		steps []any // time since the begin, caller, how many of 100 pass, and how long the next waits
	}{
		"a burst is what a second allows": {AccessRule{PerSecond: 5}, []any{
			0, jane, 5, 200, 0, john, 5, 200, 199, jane, 0, 1, 200, jane, 1, 200, 10_000, jane, 5, 200,
		}},
		"at least one":   {AccessRule{PerSecond: 0.01}, []any{0, jane, 1, 100_000, 99_999, jane, 0, 1, 100_000, jane, 1, 100_000}},
		"more than that": {AccessRule{PerSecond: 1, Burst: 10}, []any{0, jane, 10, 1000, 3000, jane, 3, 1000}},
		"less than that": {AccessRule{PerSecond: 10, Burst: 1}, []any{0, jane, 1, 100, 1000, jane, 1, 100}},
		"for all":        {AccessRule{PerSecond: 4, Shared: true}, []any{0, jane, 4, 250, 0, john, 0, 250, 250, john, 1, 250, 250, jane, 0, 250}},
	} {
		tc.rule.Action = Rate
		g := limited(t, tc.rule)
		for i := 0; i < len(tc.steps); i += 4 {
			now := begin.Add(time.Duration(tc.steps[i].(int)) * time.Millisecond)
			from := tc.steps[i+1].(bound.Source)
			check.Same(t, tc.steps[i+2].(int), passes(g, from, now, 100), "%s, step %d: requests that pass", name, i/4)
			_, wait, ok := g.Enter(from, now)
			check.Same(t, fmt.Sprint(tc.steps[i+3].(int), "ms false"), fmt.Sprint(wait.Round(time.Millisecond).Milliseconds(), "ms ", ok), "%s, step %d: the wait of the next", name, i/4)
		}
	}
}

// Who is refused takes nothing from the limit, however many are refused at the same time.
func TestRateOfMany(t *testing.T) {
	for _, shared := range []bool{true, false} {
		g := limited(t, AccessRule{Action: Rate, PerSecond: 1, Shared: shared})
		now := time.Now()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { passes(g, bound.Source{User: "jane"}, now, 50_000) })
		}
		all.Wait()
		check.Same(t, 1, passes(g, bound.Source{User: "jane"}, now.Add(time.Second), 10), "requests that pass a second after the flood, shared %v", shared)
		refused, passed := g.Count()
		check.Same(t, []uint64{400_000 + 10 - 2, 2}, []uint64{refused, passed}, "counted")
	}
}

// The callers of all rules are bounded. The limit of one who is not pushed out does not change.
func TestRateOfTooMany(t *testing.T) {
	g := limited(t, AccessRule{Action: Rate, PerSecond: 0.01})
	now, kept := time.Now(), 0
	for i := range 4 * maxBuckets {
		check.Same(t, 1, passes(g, bound.Source{User: fmt.Sprint(i)}, now, 2), "requests of caller %d that pass", i)
	}
	for i := range 4 * maxBuckets {
		if from := (bound.Source{User: fmt.Sprint(i)}); g.buckets.Get(bucket{g.state, from}, now) != nil {
			kept++
			check.Same(t, 0, passes(g, from, now, 1), "requests of caller %d that pass, who was not pushed out", i)
		}
	}
	check.Same(t, true, kept <= maxBuckets && kept >= maxBuckets/2, "%d of %d callers are kept", kept, maxBuckets)
}

// However long a caller pauses, it gets the rate on average, and no burst for which it has not waited.
func TestRateOnAverage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, r := range []AccessRule{{PerSecond: 0.01, Burst: 18}, {PerSecond: 1, Burst: 1800}, {PerSecond: 0.3}} {
			r.Action = Rate
			for _, pause := range []time.Duration{29 * time.Minute, maxRefill + time.Second, bucketTime - time.Second, bucketTime + time.Second, 5 * time.Hour} {
				g, jane, begin := limited(t, r), bound.Source{User: "jane"}, time.Now()
				for passed := 0; time.Since(begin) < 12*time.Hour && !t.Failed(); time.Sleep(pause) {
					passed += passes(g, jane, time.Now(), 2000)
					most := float64(max(r.Burst, 1)) + r.PerSecond*time.Since(begin).Seconds()
					check.Same(t, true, float64(passed) <= most+0.01, "%v a second, burst %d, pauses of %v: %d requests in %v", r.PerSecond, r.Burst, pause, passed, time.Since(begin))
				}
			}
		}
	})
}

// A new policy goes on with the limits that it has not changed.
func TestLimitsGoOn(t *testing.T) {
	now, jane := time.Now(), bound.Source{User: "jane"}
	rate := AccessRule{Name: "rate", Action: Rate, PerSecond: 1}
	all := AccessRule{Name: "all", Action: Rate, PerSecond: 1, Shared: true}
	flight := AccessRule{Name: "flight", Action: InFlight, Max: 2}
	before := reloaded(t, nil, rate, all, flight)
	for _, g := range before.All() {
		passes(g, jane, now, 5)
	}
	held, _, _ := before.byName["flight"].Enter(bound.Source{User: "john"}, now)

	after := reloaded(t, before, AccessRule{Name: "new", Action: Deny}, flight, all, rate)
	for _, g := range after.All() {
		check.Same(t, 0, passes(g, jane, now, 1), "requests that pass rule %s of a new policy", g.Name)
	}
	refused, passed := after.byName["rate"].Count()
	check.Same(t, []uint64{5, 1}, []uint64{refused, passed}, "counts of a rule in a new policy")

	// With another limit, or another name, they begin again, and what is under way ends where it began.
	rate.PerSecond, all.Shared, flight.Max = 2, false, 1
	changed := reloaded(t, after, rate, all, flight)
	for name, want := range map[string]int{"rate": 2, "all": 1, "flight": 1} {
		check.Same(t, want, passes(changed.byName[name], bound.Source{User: "john"}, now, 5), "requests that pass changed rule %s", name)
	}
	held.Leave()
	held.Leave()
	check.Same(t, []any{jane, 2, 2}, busiest(after.byName["flight"]), "places of the old policy")
	check.Same(t, []any{bound.Source{User: "john"}, 1, 1}, busiest(changed.byName["flight"]), "places of the new one")
	// A rule that was away begins again.
	back := reloaded(t, reloaded(t, changed, AccessRule{Name: "new", Action: Deny}), rate)
	check.Same(t, 2, passes(back.byName["rate"], jane, now, 5), "requests that pass a rule that was away")
}

// busiest returns who holds most places of a rule, and how many, and how many all hold.
func busiest(g *Gate) []any {
	who, n := g.places.Busiest()
	return []any{who, int(n), int(g.places.Held())}
}

// Whatever the order in which requests come and go, no caller exceeds the limit, and at the end nothing is held.
func TestInFlight(t *testing.T) {
	for _, shared := range []bool{true, false} {
		g := limited(t, AccessRule{Action: InFlight, Max: 3, Shared: shared})
		var all sync.WaitGroup
		for who := range 4 {
			from := bound.Source{User: fmt.Sprint(who)}
			all.Go(func() {
				var held []bound.Place
				for i := range 20_000 {
					if p, wait, ok := g.Enter(from, time.Time{}); ok {
						held = append(held, p)
					} else if wait != 0 {
						t.Error("a refusal knows how long")
					}
					if len(held) > 3 || !shared && len(held) == 0 {
						t.Error("requests under way:", len(held))
						return
					}
					if i%3 > 0 && len(held) > 0 {
						held[0].Leave()
						held[0].Leave()
						held = held[1:]
					}
				}
				for i := range held {
					held[i].Leave()
				}
			})
		}
		all.Wait()
		check.Same(t, []any{bound.Source{}, 0, 0}, busiest(g), "places at the end, shared %v", shared)
	}
}

// What a limit cannot keep is refused with its policy.
func TestBadLimits(t *testing.T) {
	for _, tc := range []struct {
		AccessRule
		wrong string
	}{
		{AccessRule{Action: Rate, PerSecond: 0.01, Burst: 18}, ""},
		{AccessRule{Action: Rate, PerSecond: 0.01, Burst: 19}, "r.burst"},
		{AccessRule{Action: Rate, PerSecond: 1e6, Burst: math.MaxInt32}, "r.burst"},
		{AccessRule{Action: Rate, PerSecond: 1, Burst: -1}, "r.burst"},
		{AccessRule{Action: Rate}, "r.perSecond"},
		{AccessRule{Action: Rate, PerSecond: math.NaN()}, "r.perSecond"},
		{AccessRule{Action: Rate, PerSecond: math.Inf(1)}, "r.perSecond"},
		{AccessRule{Action: Rate, PerSecond: -1}, "r.perSecond"},
		{AccessRule{Action: Deny, Burst: 1}, "r.perSecond"},
		{AccessRule{Action: Rate, PerSecond: 1, Max: 1}, "r.max"},
		{AccessRule{Action: InFlight}, "r.max"},
		{AccessRule{Action: InFlight, Max: 1, PerSecond: 1}, "r.perSecond"},
		{AccessRule{Action: Deny, Shared: true}, "r.shared"},
		{AccessRule{Action: "deny"}, "r.action"},
		{AccessRule{Action: Allow, Sources: []string{}}, "r.sources"}, // or it would let everybody pass
	} {
		tc.Name, tc.Match = "r", everybody()
		got := ""
		if errs := NewGates(nil).Add(&tc.AccessRule, "here", field.NewPath("r"), false); len(errs) > 0 {
			got = errs[0].Field
		}
		check.Same(t, tc.wrong, got, "the first field that is wrong of %+v", tc.AccessRule)
	}
}
