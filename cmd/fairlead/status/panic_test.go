package status

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

// A panic ends the process, and so its Lease. It does not wait for the watch of other writers'
// conditions: that ends only with the election.
func TestPanicEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := &stage{T: t, apiserver: newAPIServer(t)}, &replica{}
		r.set(nil)
		c := s.config(r)
		var broken atomic.Bool
		c.Table = func() latest.State[*registry.Entry] {
			if broken.Load() {
				panic("broken")
			}
			return r.table()
		}
		panicked := make(chan any, 1)
		c.Elect = func(ctx context.Context, _ string, lead func(context.Context)) error {
			defer func() { panicked <- recover() }()
			lead(ctx)
			return nil
		}
		go func() { _ = New(c).Run(t.Context()) }()
		synctest.Wait()
		broken.Store(true)
		r.set(nil)
		synctest.Wait()
		select {
		case v := <-panicked:
			if v != "broken" {
				t.Errorf("it has ended with %v", v)
			}
		default:
			t.Error("a panic waits for the watch")
		}
	})
}
