package entrypoint

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A replica that could not write its own Lease, because another writer was faster, does not know
// who is alive. It must not publish an empty list.
func TestAContestedLease(t *testing.T) {
	for _, tc := range []struct {
		name, verb, want string
		withdraws        bool
	}{
		{"renewed", "update", "https 10.0.0.1 8443, https 10.0.0.2 8443", false},
		{"dropped", "delete", "https 10.0.0.1 8443, https 10.0.0.2 8443", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newAPIServer(t)
				start(t, s, "one", "10.0.0.1:8443")
				time.Sleep(interval / 2)
				two := start(t, s, "two", "10.0.0.2:8443")
				want(t, s, interval/4, "both", "https 10.0.0.1 8443, https 10.0.0.2 8443")
				var contested atomic.Bool
				s.fake.Lock() // PrependReactor does not lock
				s.fake.PrependReactor(tc.verb, "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if contested.Swap(true) {
						return false, nil, nil
					}
					return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), "own", errors.New("changed meanwhile"))
				})
				s.fake.Unlock()
				if tc.withdraws {
					two.Withdraw()
				}
				for range 2 * int(interval/readyInterval) {
					time.Sleep(readyInterval / 2)
					want(t, s, 0, "contested", tc.want)
					if contested.Load() {
						break
					}
				}
				if !contested.Load() {
					t.Error("no Lease was contested")
				}
			})
		})
	}
}
