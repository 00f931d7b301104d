package status

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The timings of the election are those of Kubernetes' own components: a dead leader is replaced
// within about 17 s, and a leader that cannot reach the apiserver for 10 s stops writing 5 s before
// another may begin.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// election decides which replica leads.
type election struct {
	leases          coordinationv1.LeasesGetter
	lease, identity string        // the Lease is in kube-system
	turn            chan struct{} // one slot: holds an element while a goroutine leads
}

// run takes part in the election until ctx ends, and calls lead while this replica leads. After
// losing the Lease it runs for election again.
func (e *election) run(ctx context.Context, lead func(context.Context)) error {
	for ctx.Err() == nil {
		// A new elector each time: one that has lost remembers an old state of the Lease.
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: e.lease,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: e.lease},
				Client:     e.leases,
				LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
			},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			// The context ends a write in flight, and the next leader reads every condition before
			// it writes.
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { e.lead(ctx, lead) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("configuring election: %w", err)
		}
		elector.Run(ctx)
		e.turn <- struct{}{} // wait for lead to end; if it has not started yet, its context has ended
		<-e.turn
	}
	return ctx.Err()
}

// lead calls lead unless ctx has ended; the election cancels ctx when the Lease is lost.
func (e *election) lead(ctx context.Context, lead func(context.Context)) {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if ctx.Err() == nil {
		lead(ctx)
	}
}
