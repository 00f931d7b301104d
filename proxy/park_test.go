package proxy

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// Of a source's requests that need look-ups, sixteen are decided at once, and the others in turn.
func TestParkedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann, bob := bound.Source{User: "ann"}, bound.Source{User: "bob"}
		l, step, order := &parking{}, make(chan struct{}), make(chan int, 200)
		for i := range 200 {
			if !l.park(ann, func() { order <- i; <-step }) {
				t.Fatalf("request %d is refused", i)
			}
			synctest.Wait()
		}
		other := false
		l.park(bob, func() { other = true })
		synctest.Wait()
		if !other {
			t.Error("another's request waits")
		}
		for done := range 200 {
			if n := len(order); n != min(parkedAtOnce+done, 200) {
				t.Fatalf("%d of 200 have begun when %d are done", n, done)
			}
			step <- struct{}{}
			synctest.Wait()
		}
		close(order)
		var got []int
		for i := range order {
			got = append(got, i)
		}
		if !slices.IsSorted(got) || len(l.by) > 0 {
			t.Errorf("in the order %v, %d lines are left", got, len(l.by))
		}
	})
}

func TestParkedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, gate, n := &parking{}, make(chan struct{}), 0
		for l.park(bound.Source{}, func() { <-gate }) {
			n++
		}
		if n != parkedAtOnce+maxParked {
			t.Errorf("%d are parked, want %d", n, parkedAtOnce+maxParked)
		}
		close(gate)
	})
}
