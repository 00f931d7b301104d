// Package must ends a test that cannot go on: its preparation has failed, or its rest would panic or wait. It is
// for the test's own goroutine, and ends only that one elsewhere. What a test can go on without is package check's.
package must

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Do ends the test on an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Be ends the test unless ok, which its rest needs.
func Be(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// Get takes the results of a call. The returned function returns the value, or ends the test on an
// error: b := must.Get(os.ReadFile(name))(t).
func Get[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Get2 is Get for a call that returns two values beside its error.
func Get2[A, B any](a A, b B, err error) func(testing.TB) (A, B) {
	return func(t testing.TB) (A, B) {
		t.Helper()
		Do(t, err)
		return a, b
	}
}

// Run calls run on a goroutine until the test ends or stop is called; stop waits for it. The test
// fails if run returns anything but its context's error.
func Run(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Main runs a package's tests, and fails if they leave a goroutine. On a busy machine some take longer to end than the
// half second that goleak waits.
func Main(m *testing.M, ignored ...goleak.Option) {
	goleak.VerifyTestMain(runner(func() (code int) {
		code = m.Run()
		Becomes(10*time.Second, func() bool { return code != 0 || goleak.Find(ignored...) == nil })
		return code
	}), ignored...)
}

type runner func() int

// Run implements goleak.TestingM.
func (r runner) Run() int { return r() }

// Soon waits until is returns true, and ends the test if that takes longer than most, as Becomes counts.
func Soon(t testing.TB, most time.Duration, what string, is func() bool) {
	t.Helper()
	Be(t, Becomes(most, is), "not within %s: %s", most, what)
}

// Becomes waits until is returns true, and reports whether that took no longer than most. Moments in which this process
// did not run do not count: what the test waits for did not run either.
func Becomes(most time.Duration, is func() bool) bool {
	tick, begun, stood := time.NewTicker(time.Millisecond), time.Now(), time.Duration(0)
	defer tick.Stop()
	for !is() {
		if time.Since(begun)-stood > most {
			return false
		}
		before := time.Now()
		<-tick.C
		stood += max(time.Since(before)-10*time.Millisecond, 0) // a scheduler that is only busy is late by so much
	}
	return true
}

// Come returns what comes from a channel, and ends the test if that takes longer than most, as Becomes counts.
func Come[T any](t testing.TB, most time.Duration, what string, from <-chan T) (v T) {
	t.Helper()
	Soon(t, most, what, func() bool {
		select {
		case v = <-from:
			return true
		default:
			return false
		}
	})
	return v
}
