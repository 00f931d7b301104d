package status

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// A new leader repeats neither a reported fault nor its end, but reports new faults.
func TestFaultsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := object("a")
		s := newAPIServer(t, a)
		var fault atomic.Pointer[map[string]string]
		fault.Store(&map[string]string{"a": "its bundle cannot be read"})
		_, stop := startEvents(t, s, "one", func() map[string]string { return *fault.Load() }, remote(a, "True", "Passed"))
		for _, f := range []map[string]string{{}, {"a": "it is cut"}, {}} {
			time.Sleep(time.Minute)
			fault.Store(&f)
		}
		time.Sleep(time.Minute)
		check.Same(t, []string{"a Warning Faulty in default: it is cut"}, s.events(), "Events")
		stop()
	})
}
