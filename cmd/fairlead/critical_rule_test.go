package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/members"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func someOf(r *rand.Rand, names ...string) []string {
	return slices.DeleteFunc(names, func(string) bool { return r.IntN(2) == 0 })
}

// Whatever replicas reach, and whichever each deems critical: not all are less than another, and
// one that is less is less than one that is ready.
func TestCriticalRule(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	unready := 0
	for range 20_000 {
		all, leases := make([]critical, 1+r.IntN(6)), []*coordinationv1.Lease(nil)
		for i := range all {
			all[i].names = someOf(r, "a", "b", "c", "d")
			reached := strings.Join(someOf(r, slices.Clone(all[i].names)...), ",")
			leases = append(leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{reachedAnnotation: reached}}})
		}
		var ready []*coordinationv1.Lease
		for i, l := range leases {
			if all[i].lessThan(l.Annotations, leases) == nil {
				ready = append(ready, l)
			}
		}
		for i, l := range leases {
			if !slices.Contains(ready, l) {
				unready++
				if all[i].lessThan(l.Annotations, ready) == nil {
					t.Fatalf("%v is not ready, and no ready one reaches more: %v", l.Annotations, leases)
				}
			}
		}
		if len(ready) == 0 {
			t.Fatalf("none is ready: %v", leases)
		}
	}
	check.Same(t, true, unready >= 10_000, "only %d were not ready", unready)
}

// While what replicas reach changes at random, and Leases sometimes cannot be read or written, some
// replica is ready at any time.
func TestCriticalAtAnyTime(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			f, out := newFleet(t), 0
			defer f.end()
			for _, name := range []string{"one", "two", "three", "four"} {
				f.start(name, "a,b,c", "")
			}
			time.Sleep(members.Interval)
			for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond) {
				synctest.Wait()
				switch n := r.IntN(100); {
				case n < 1:
					f.down.Store(true)
				case n < 2:
					f.full.Store(true)
				case n < 10:
					f.down.Store(false)
					f.full.Store(false)
				case n < 30:
					f.replicas[[]string{"one", "two", "three", "four"}[r.IntN(4)]].reaches.Store(new(strings.Join(someOf(r, "a", "b", "c"), ",")))
				}
				ready := f.ready()
				if len(ready) == 0 {
					t.Fatalf("seed %d: none is ready", seed)
				}
				out += 4 - len(ready)
			}
			check.Same(t, true, out != 0, "seed %d: all were always ready", seed)
		})
	}
}
