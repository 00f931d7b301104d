package latest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
	check.Same(t, []int{0, 2, 2, 3}, seen, "states seen")
}

type item struct{ name string }

func (i *item) Key() string { return i.name }

// Diff equals a comparison by name, with any elements added, removed, changed or moved.
func TestDiff(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var old, now []*item
		for i := range rng.IntN(300) {
			e := &item{fmt.Sprint(i)}
			if rng.IntN(20) > 0 {
				old = append(old, e)
			}
			if rng.IntN(30) == 0 {
				e = &item{e.name}
			}
			if rng.IntN(20) > 0 {
				now = append(now, e)
			}
		}
		for range rng.IntN(3) { // moved elements, within and beyond the window
			if len(now) > 0 {
				from := rng.IntN(len(now))
				e := now[from]
				now = slices.Delete(now, from, from+1)
				now = slices.Insert(now, rng.IntN(len(now)+1), e)
			}
		}
		if rng.IntN(10) == 0 { // more than the window
			now = slices.DeleteFunc(now, func(*item) bool { return rng.IntN(3) > 0 })
		}
		want := make(map[string]Change[*item])
		for _, e := range old {
			want[e.name] = Change[*item]{Old: e}
		}
		for _, e := range now {
			if c := want[e.name]; c.Old == e {
				delete(want, e.name)
			} else {
				want[e.name] = Change[*item]{c.Old, e}
			}
		}
		got := make(map[string]Change[*item])
		for _, c := range Diff(old, now) {
			e := c.New
			if e == nil {
				e = c.Old
			}
			_, twice := got[e.name]
			check.Same(t, false, twice, "seed %d: %s is named twice", seed, e.name)
			got[e.name] = c
		}
		check.Same(t, true, maps.Equal(got, want), "seed %d: got %d changes, want %d", seed, len(got), len(want))
	}
}
