package check

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// stopping is a sleep function whose 20th call oversleeps by still.
func stopping(still time.Duration) func(time.Duration) {
	n := 0
	return func(d time.Duration) {
		if n++; n == 20 {
			d += still
		}
		time.Sleep(d)
	}
}

// keepTime runs the clock until the test ends, or end is called.
func (s *story) keepTime(t *testing.T, sleep func(time.Duration)) (end func()) {
	s.clock.Sleep = sleep
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.KeepTime(ctx) })
	end = func() { cancel(); running.Wait() }
	t.Cleanup(end)
	return end
}

func TestStandstill(t *testing.T) {
	for _, tt := range []struct {
		name           string
		still          time.Duration
		begin, end     time.Duration // of what was late, since the start
		want, excusing time.Duration
	}{
		{"on time", 0, 0, 10 * time.Second, 0, 0},
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
				s := tell()
				s.keepTime(t, stopping(tt.still))
				time.Sleep(time.Minute)
				if got := s.clock.Stood(began.Add(tt.begin), began.Add(tt.end)); got != tt.want {
					t.Errorf("stood still for %v, want %v", got, tt.want)
				}
				if got := s.clock.Excuses(began.Add(tt.begin), began.Add(tt.end)); got != tt.excusing {
					t.Errorf("excuses %v, want %v", got, tt.excusing)
				}
			})
		})
	}
}

// A standstill counts even before the clock itself has woken.
func TestClockIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tell()
		end := s.keepTime(t, stopping(10*time.Second))
		time.Sleep(6 * time.Second)
		if got, want := s.clock.Excuses(time.Now().Add(-3*time.Second), time.Now()), 5*time.Second; got != want {
			t.Errorf("excuses %v, want %v", got, want)
		}
		if n, _, _ := s.clock.Sum(); n != 0 {
			t.Errorf("the clock has recorded %d standstills already", n)
		}
		time.Sleep(time.Minute)
		if n, all, longest := s.clock.Sum(); n != 1 || all != 10*time.Second || longest != all {
			t.Errorf("%d standstills, %v, %v", n, all, longest)
		}
		end()
		time.Sleep(time.Minute)
		if got := s.clock.Stood(time.Now().Add(-50*time.Second), time.Now()); got != 0 {
			t.Errorf("a stopped clock has seen %v", got)
		}
	})
}

// A standstill excuses lateness, and nothing else.
func TestExcused(t *testing.T) {
	late := failures()
	for i := range late {
		switch late[i].name {
		case "a failure without a fault", "a failure in a fault of another group", "a failure after the fault", "a failure before the fault",
			"silence in a fault that answers", "a watch that begins wrongly and is cut for nothing", "a watch that is cut for nothing", "a watch that stalls", "a verdict that stays":
			if late[i].want == nil {
				t.Fatalf("%s is not a violation", late[i].name)
			}
			late[i].want = nil
		}
	}
	for _, tt := range slices.Concat(answers(), writes(), late) {
		if tt.name == "a server that is removed meanwhile" {
			continue // without other goroutines no time passes within a bubble
		}
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tell()
				s.keepTime(t, stopping(40*time.Second))
				time.Sleep(42 * time.Second)
				tt.tell(s)
				var got []Invariant
				for _, v := range s.Violations() {
					got = append(got, v.Invariant)
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("violations %+v, want of %q", s.Violations(), tt.want)
				}
			})
		})
	}
}

// Excused failures are reported, with how long the machine stood still.
func TestExcusedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tell()
		s.keepTime(t, stopping(3*time.Second))
		time.Sleep(5 * time.Second)
		s.read(status(503))
		if o := s.Outcome(Explained); o != (Outcome{Checked: 1, Excused: 1}) {
			t.Errorf("%+v", o)
		}
		var out bytes.Buffer
		must.Do(t, s.Report(&out))
		for _, want := range []string{"1 times  3s in all  3s at most", `late "no failure without a fault": the machine stood still for 3s: read r1 failed`} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the report has no %q:\n%s", want, &out)
			}
		}
		for _, want := range []string{`"EXCUSED"`, `"stood still"`, `"milliseconds":3000`} {
			if !strings.Contains(s.journal.String(), want) {
				t.Errorf("the journal has no %s:\n%s", want, &s.journal)
			}
		}
	})
}
