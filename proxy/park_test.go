package proxy

import (
	"slices"
	"testing"
	"testing/synctest"
)

// Of a connection's requests that need look-ups, sixteen are decided at once, and the others in turn.
func TestParkedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, step, order := &frameConn{}, make(chan struct{}), make(chan int, 200)
		for i := range 200 {
			if !c.park(func() { order <- i; <-step }) {
				t.Fatalf("request %d is refused", i)
			}
			synctest.Wait()
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
		if !slices.IsSorted(got) || c.deciding != 0 || c.parked != nil {
			t.Errorf("in the order %v, %d goroutines are left", got, c.deciding)
		}
	})
}

func TestParkedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, gate, n := &frameConn{}, make(chan struct{}), 0
		for c.park(func() { <-gate }) {
			n++
		}
		if n != parkedAtOnce+maxParked {
			t.Errorf("%d are parked, want %d", n, parkedAtOnce+maxParked)
		}
		close(gate)
	})
}
