package status

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// hanging is an apiserver that may accept requests about Leases and never answer.
type hanging struct {
	kubernetes.Interface
	coordinationv1client.CoordinationV1Interface
	coordinationv1client.LeaseInterface
	now *atomic.Bool
}

func (h hanging) CoordinationV1() coordinationv1client.CoordinationV1Interface { return h }

func (h hanging) Leases(string) coordinationv1client.LeaseInterface { return h }

func (h hanging) wait(ctx context.Context) error {
	if h.now.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (h hanging) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := h.wait(ctx); err != nil {
		return nil, err
	}
	return h.LeaseInterface.Get(ctx, name, o)
}

func (h hanging) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := h.wait(ctx); err != nil {
		return nil, err
	}
	return h.LeaseInterface.Update(ctx, l, o)
}

// A leader whose renewals hang leads no more when its Lease may become another's.
func TestHangingRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		h := hanging{LeaseInterface: s.client.CoordinationV1().Leases("kube-system"), now: &atomic.Bool{}}
		began, led := time.Now(), time.Duration(0)
		stop := must.Run(t, func(ctx context.Context) error {
			return Config{Client: h, Identity: "one"}.elect(ctx, lease, func(ctx context.Context) {
				<-ctx.Done()
				led = time.Since(began)
			})
		})
		time.Sleep(time.Second) // it is renewed every 2 s, last at the start
		h.now.Store(true)
		time.Sleep(time.Minute)
		if stop(); led == 0 || led >= 15*time.Second {
			t.Errorf("it led for %s", led)
		}
	})
}
