package latest

import (
	"context"
	"slices"
	"testing"
	"time"
)

// state is a number that others supersede.
type state struct {
	number     int
	superseded chan struct{}
}

func (s *state) Superseded() <-chan struct{} { return s.superseded }

// A reader gets the current state and then the newest, without those between; it gets the same
// again when it is woken, and ends with its context.
func TestOf(t *testing.T) {
	t.Parallel()
	var all []*state
	for i := range 4 {
		all = append(all, &state{number: i, superseded: make(chan struct{})})
	}
	at := 0
	pass := func(to int) {
		old := all[at]
		at = to
		close(old.superseded)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wake := make(chan time.Time, 1)
	var seen []int
	for s := range Of(ctx, func() *state { return all[at] }, wake) {
		seen = append(seen, s.number)
		switch len(seen) {
		case 1:
			pass(1)
			pass(2)
		case 2:
			wake <- time.Time{}
		case 3:
			pass(3)
		case 4:
			cancel()
		}
	}
	if want := []int{0, 2, 2, 3}; !slices.Equal(seen, want) {
		t.Errorf("saw the states %v, want %v", seen, want)
	}
}
