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

// While an apiserver lists and takes no writes, because its etcd is full, no Lease can be renewed
// and none expires. A replica that is not ready writes none itself, and must not take that for the
// death of all others.
func TestAnApiserverThatTakesNoWrites(t *testing.T) {
	for _, shift := range []time.Duration{0, time.Second, 1700 * time.Millisecond} {
		story(t, func(t *testing.T, s *apiserver) {
			var full atomic.Bool
			s.fake.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				reads := a.GetVerb() == "get" || a.GetVerb() == "list"
				return full.Load() && !reads, nil, errors.New("etcdserver: mvcc: database space exceeded")
			})
			const both = "https 10.0.0.1 8443, https 10.0.0.2 8443"
			start(t, s, "one", "10.0.0.1:8443")
			time.Sleep(700 * time.Millisecond)
			two := start(t, s, "two", "10.0.0.2:8443")
			time.Sleep(500 * time.Millisecond)
			three := start(t, s, "three", "10.0.0.3:8443")
			time.Sleep(leaseDuration)
			three.unready.Store(true)
			want(t, s, leaseDuration+shift, "the third is not ready", both)
			full.Store(true)
			time.Sleep(time.Minute)
			full.Store(false)
			writes := s.written()
			want(t, s, 2*interval, "writes are taken again", both)
			if n := s.written() - writes; n != 0 {
				t.Errorf("%d writes: a replica was withdrawn", n)
			}
			two.die()
			want(t, s, leaseDuration+2*interval, "one is dead indeed", "https 10.0.0.1 8443")
		})
	}
}
