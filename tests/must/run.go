package must

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// Run has something run until the test ends, or stop is called, which waits for its end. It fails
// the test if that comes otherwise than because its context ended.
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
