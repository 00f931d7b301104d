package status

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/workqueue"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apply "k8s.io/kube-aggregator/pkg/client/applyconfiguration/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// conditionType is our own condition.
	conditionType = "fairlead.dev/Available"
	// spacing is the least time between two writes of an APIService, however often it flaps.
	spacing = time.Second
	// lastRetry bounds the backoff after a failed write: it starts at spacing and doubles.
	lastRetry = 30 * time.Second
	// repair is when what others have changed is put right at the latest. Available is at once, but
	// our own condition not before: only a replica writes it, and another one may lead by now.
	repair = 10 * time.Minute
	// callTimeout bounds a write, and so how long a hanging one delays others.
	callTimeout = 10 * time.Second
)

// condition is the part of our condition that is compared.
type condition struct {
	status          apiregistrationv1.ConditionStatus
	reason, message string
}

// written is what the apiserver has for one APIService. Zero means that none of it is ours.
type written struct {
	condition
	uid       types.UID // of the object that has it
	version   string    // the latest resourceVersion that was seen
	since     metav1.Time
	notBefore time.Time     // of the next write
	pause     time.Duration // the backoff after a failed write
	// losses is how often another writer has replaced the condition, lostLast when it last did.
	losses   int
	lostLast time.Time
}

// elect takes part in the election by a Lease in kube-system until ctx ends, and calls lead while
// this replica leads. After losing the Lease it runs for election again.
func (c Config) elect(ctx context.Context, lease string, lead func(context.Context)) error {
	turn := make(chan struct{}, 1) // holds an element while a goroutine leads
	for ctx.Err() == nil {
		// A new elector each time: one that has lost remembers an old state of the Lease.
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: lease,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: lease},
				Client:     c.Client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
			},
			// As Kubernetes' own components: a dead leader is replaced within about 17 s, and one
			// that cannot reach the apiserver for 10 s stops writing 5 s before another may begin.
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			// The context ends a write in flight, and the next leader first reads every condition.
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { // canceled when the Lease is lost
					turn <- struct{}{}
					defer func() { <-turn }()
					if ctx.Err() == nil {
						lead(ctx)
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("configuring election: %w", err)
		}
		elector.Run(ctx)
		turn <- struct{}{} // wait for lead to end; if it has not started yet, its context has ended
		<-turn
	}
	return ctx.Err()
}

// term is one period of leading, a controller as Kubernetes has them: the table and the watch put
// names into its queue, and its worker makes one APIService after the other as it should be.
type term struct {
	writer  *Writer
	queue   workqueue.TypedDelayingInterface[string] // names of APIServices that may differ
	objects cache.Store                              // the APIServices, as the watch has brought them
	entries sync.Map                                 // :: APIService → *registry.Entry
	written map[string]*written                      // :: APIService → what it has. Only the worker uses it
}

// run writes conditions that differ, until ctx ends.
func (t *term) run(ctx context.Context) {
	t.queue, t.written = workqueue.NewTypedDelayingQueue[string](), map[string]*written{}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer t.queue.ShutDown()
	defer cancel() // a panic must not wait for the election
	informer := t.informer()
	running.Go(func() { informer.RunWithContext(ctx) })
	select {
	case <-informer.HasSyncedChecker().Done(): // before that everything would differ
	case <-ctx.Done():
		return
	}
	running.Go(func() { t.work(ctx) })
	for _, changes := range latest.Changes(ctx, t.writer.config.Table, nil) {
		for _, c := range changes {
			e := cmp.Or(c.New, c.Old)
			if e.Rule != nil {
				continue // it has no object
			}
			if c.New == nil {
				t.entries.Delete(e.Name)
			} else {
				t.entries.Store(e.Name, e)
			}
			t.queue.Add(e.Name)
		}
	}
}

// informer makes what reads the APIServices. The table cannot be used: an Entry's Object is not
// renewed when only its status has changed.
func (t *term) informer() (informer cache.Controller) {
	pause := repair
	if t.writer.condition == apiregistrationv1.Available {
		pause = 0
	}
	changed := func(o any) {
		name, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(o) // every object has one
		t.queue.AddAfter(name, pause)
	}
	listed := false
	t.objects, informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := t.writer.config.APIServices.List(ctx, o)
				if listed = err == nil; !listed {
					t.writer.log.Error("cannot read statuses", "err", err)
				}
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents == nil && !listed { // an etcd that was restored may have the version again
					return nil, apierrors.NewResourceExpired("all are read again")
				}
				listed = false
				return t.writer.config.APIServices.Watch(ctx, o)
			},
		},
		ObjectType:      &apiregistrationv1.APIService{},
		MinWatchTimeout: repair, // then all are read again
		Transform: func(o any) (any, error) { // without the spec and managed fields
			if a, ok := o.(*apiregistrationv1.APIService); ok {
				o = &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: a.Name, UID: a.UID, ResourceVersion: a.ResourceVersion}, Status: a.Status}
			}
			return o, nil
		},
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(o any, first bool) {
				if !first { // of those the table brings all
					changed(o)
				}
			},
			UpdateFunc: func(_, o any) { changed(o) },
			DeleteFunc: changed,
		},
	})
	return informer
}

// work looks at what is in the queue, until ctx ends.
func (t *term) work(ctx context.Context) {
	for {
		name, ended := t.queue.Get()
		if ended || ctx.Err() != nil {
			return
		}
		t.settle(ctx, name)
		t.queue.Done(name)
	}
}

// settle applies the condition of one APIService if it differs and may be written now, and else comes back.
func (t *term) settle(ctx context.Context, name string) {
	object, exists, _ := t.objects.GetByKey(name) // from memory
	entry, wanted := t.entries.Load(name)
	if !exists && !wanted {
		delete(t.written, name)
		return
	}
	have := cmp.Or(t.written[name], &written{})
	t.written[name] = have
	if exists {
		t.see(have, object.(*apiregistrationv1.APIService)) //nolint:forcetypeassert // informer stores no others
	}
	if !wanted {
		return
	}
	e := entry.(*registry.Entry) //nolint:forcetypeassert // run stores no others
	if have.uid != e.Object.UID {
		*have = written{uid: e.Object.UID, version: have.version}
		if e.Local() { // kube-aggregator's strategy gives it one
			have.condition, _ = t.wanted(e)
		}
	}
	want, known := t.wanted(e)
	if known && want != have.condition && !time.Now().Before(have.mayWrite(want)) {
		t.replace(ctx, e, have, want)
	}
	if known && want != have.condition {
		t.queue.AddAfter(name, time.Until(have.mayWrite(want)))
	}
}

// replace applies one condition and records the result.
func (t *term) replace(ctx context.Context, e *registry.Entry, have *written, want condition) {
	since := metav1.NewTime(e.Verdict.Since)
	if want.status == have.status && !have.since.IsZero() {
		since = have.since // as in Kubernetes, the time changes only with the status
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Without our condition, which this field manager owns, an apply removes it. Others stay.
	status := apply.APIServiceStatus()
	if want != (condition{}) {
		status.WithConditions(apply.APIServiceCondition().WithType(t.writer.condition).WithStatus(want.status).
			WithReason(want.reason).WithMessage(want.message).WithLastTransitionTime(since))
	}
	// Force: no other field manager may own a condition of this name.
	o, err := t.writer.config.APIServices.ApplyStatus(ctx, apply.APIService(e.Name).WithUID(e.Object.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: "fairlead", Force: true})
	if err != nil {
		have.pause = min(max(2*have.pause, spacing), lastRetry)
		have.notBefore = time.Now().Add(have.pause)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		// The object was deleted, or created anew with another UID; then the table will change. If
		// it appears again with the same UID, a cache was behind.
		return
	}
	t.writer.writes.WithLabelValues(map[bool]string{false: "written", true: "failed"}[err != nil]).Inc()
	if err != nil {
		t.writer.log.Error("cannot write status", "apiservice", e.Name, "err", err)
		return
	}
	have.condition, have.since, have.version = want, since, o.ResourceVersion
	have.pause, have.notBefore = 0, time.Now().Add(spacing)
}

// mayWrite returns when the wanted condition may be written.
func (w *written) mayWrite(want condition) time.Time {
	if want.status == w.status && want.reason == w.reason {
		const rewording = 30 * time.Second // two alternating errors would otherwise cost one write a second forever
		return w.notBefore.Add(rewording - spacing)
	}
	return w.notBefore
}

// wanted returns the condition that an entry should have, the zero value for none. If known is
// false there is no verdict yet, and the condition stays.
func (t *term) wanted(e *registry.Entry) (want condition, known bool) {
	switch ours := t.writer.condition == conditionType; {
	case !ours && e.Object.ResourceVersion == "": // read from a file, not stored
		return condition{}, false
	case ours && e.Local():
		return condition{}, true
	}
	v := e.Verdict
	if v.Status == "" {
		return condition{}, false
	}
	return condition{apiregistrationv1.ConditionStatus(v.Status), v.Reason, printable.Line(v.Message)}, true
}

// see notes what the watch has brought of an APIService. After each loss against another writer the next write waits
// longer, up to repair: a kube-apiserver's own aggregator over the same keys would always write again.
func (t *term) see(have *written, o *apiregistrationv1.APIService) {
	const behind = time.Minute // may the watch be. Later, etcd was restored from a backup
	if order, err := resourceversion.CompareResourceVersion(o.ResourceVersion, have.version); err == nil &&
		(order == 0 || order < 0 && time.Since(have.notBefore) < behind) {
		return // our own, or one before it
	}
	before := *have
	have.uid, have.version, have.condition, have.since = o.UID, o.ResourceVersion, condition{}, metav1.Time{}
	for _, c := range o.Status.Conditions {
		if c.Type == t.writer.condition {
			have.condition, have.since = condition{c.Status, c.Reason, c.Message}, c.LastTransitionTime
		}
	}
	if have.condition == before.condition || have.uid != before.uid || before.condition == (condition{}) {
		return // it has replaced nothing
	}
	if time.Since(have.lostLast) > 2*repair {
		have.losses = 0
	}
	if have.losses, have.lostLast = have.losses+1, time.Now(); have.losses == 1 {
		return
	}
	have.notBefore = have.lostLast.Add(min(spacing<<min(have.losses, 10), repair))
	if have.losses == 3 { // it persists
		t.writer.log.Warn("another writer writes this condition too: replacing it less and less often", "apiservice", o.Name, "condition", t.writer.condition)
	}
}
