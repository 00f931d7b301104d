package proxy

import (
	"fmt"
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
			if !l.park(ann, 0, func() { order <- i; <-step }) {
				t.Fatalf("request %d is refused", i)
			}
			synctest.Wait()
		}
		other := false
		l.park(bob, 0, func() { other = true })
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

// What waits is bounded in bytes: a connection may end, and its address begin another.
func TestParkedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const head = quickHead - parkedSize
		l, gate := &parking{}, make(chan struct{})
		fill := func(s bound.Source) (n int) {
			for l.park(s, head, func() { <-gate }) {
				n++
			}
			return n - parkedAtOnce
		}
		all := 0
		for i := range 10 {
			n := fill(bound.Stranger(fmt.Sprint("192.0.2.1:", i+1)))
			if want := maxParked / 16 / quickHead; i == 0 && n != want {
				t.Errorf("%d of a connection wait, want %d", n, want)
			}
			all += n
		}
		if want := maxParked / 4 / quickHead; all != want || fill(bound.Source{User: "ann"}) != want {
			t.Errorf("%d of an address wait, want %d, and as many of a user", all, want)
		}
		close(gate)
		synctest.Wait()
		if n := l.held.Held(); n != 0 {
			t.Errorf("nothing waits, and %d bytes are counted", n)
		}
	})
}
