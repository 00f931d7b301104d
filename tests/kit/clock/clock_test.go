package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// start runs a clock whose 20th sleep, after 950 ms, takes longer by still.
func start(t *testing.T, still time.Duration) (k *Clock, stop func()) {
	t.Helper()
	n := 0
	k = &Clock{Sleep: func(d time.Duration) {
		if n++; n == 20 {
			d += still
		}
		time.Sleep(d)
	}}
	return k, must.Run(t, func(ctx context.Context) error { k.Run(ctx); return ctx.Err() })
}

func TestStandstill(t *testing.T) {
	for _, tt := range []struct {
		name           string
		still          time.Duration
		begin, end     time.Duration // of what was late, since the start
		want, excusing time.Duration
	}{
		{"a busy scheduler", 200 * time.Millisecond, 0, 10 * time.Second, 0, 0},
		{"a standstill", 3 * time.Second, 0, 6 * time.Second, 3 * time.Second, 3 * time.Second},
		{"half of it", 4 * time.Second, 3 * time.Second, 7 * time.Second, 2 * time.Second, 4 * time.Second}, // it began just before
		{"before it", 3 * time.Second, 0, 900 * time.Millisecond, 0, 0},
		{"right after it", 3 * time.Second, 4 * time.Second, 7 * time.Second, 0, 3 * time.Second},
		{"long after it", 3 * time.Second, 12 * time.Second, 13 * time.Second, 0, 0},
		{"too short for it", 900 * time.Millisecond, time.Second, 3 * time.Second, 900 * time.Millisecond, 0},
		{"a small part of it", 3 * time.Second, 0, 30 * time.Second, 3 * time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				k, _ := start(t, tt.still)
				time.Sleep(time.Minute)
				stood, excuses := k.Stood(began.Add(tt.begin), began.Add(tt.end)), k.Excuses(began.Add(tt.begin), began.Add(tt.end))
				check.Same(t, [2]time.Duration{tt.want, tt.excusing}, [2]time.Duration{stood, excuses}, "standstill, excuses")
			})
		})
	}
}

// A standstill counts even before the clock itself has woken, and none does after its end.
func TestClockIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, stop := start(t, 10*time.Second)
		time.Sleep(6 * time.Second)
		check.Same(t, 5*time.Second, k.Excuses(time.Now().Add(-3*time.Second), time.Now()), "excuses")
		time.Sleep(time.Minute)
		n, all, longest := k.Sum()
		check.Same(t, [3]any{1, 10 * time.Second, 10 * time.Second}, [3]any{n, all, longest}, "standstills, their sum, the longest")
		stop()
		time.Sleep(time.Minute)
		check.Same(t, 0, k.Stood(time.Now().Add(-50*time.Second), time.Now()), "what a stopped clock has seen")
	})
}
