package members

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// An expired Lease is not counted, even if it cannot be deleted. It lasts as long as it says, as another release may.
func TestALeaseRunsOut(t *testing.T) {
	for _, seconds := range []*int32{nil, new(int32(16))} {
		m, now, lasts := New(Config{}), time.Now(), time.Duration(ptr.Deref(seconds, 8))*time.Second
		renewed := metav1.NewMicroTime(now)
		lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: seconds}}
		for i, want := range []string{"1 0", "1 0", "0 1", "0 1"} {
			alive, dead := m.observe([]coordinationv1.Lease{lease}, true, now.Add(time.Duration(i)*lasts/2))
			check.Same(t, want, fmt.Sprint(len(alive), " ", len(dead)), "after %d halves of its %s", i, lasts)
		}
	}
}
