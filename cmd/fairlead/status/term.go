package status

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apply "k8s.io/kube-aggregator/pkg/client/applyconfiguration/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

const (
	conditionType = "fairlead.dev/Available" // our own condition
	relist        = 10 * time.Minute         // after which conditions are read again, to repair others' changes
	spacing       = time.Second              // at least, between two writes of an APIService, however often it flaps
	lastRetry     = 30 * time.Second         // at most, after a failed write or list: the backoff begins with spacing
	callTimeout   = 10 * time.Second         // of a call to the apiserver, so long a hanging one delays others
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
	version   string    // the resourceVersion of this state
	since     metav1.Time
	notBefore time.Time     // of the next write
	pause     time.Duration // the backoff after a failed write
	losses    int           // how often another writer has replaced the condition
	lostLast  time.Time     // when it last did
}

type term struct {
	writer  *Writer
	entries map[string]*written        // :: APIService → what the apiserver has. Nil until the first list
	todo    map[string]*registry.Entry // :: APIService → entries that may differ from it
	due     time.Time                  // of the next list
	pause   time.Duration              // the backoff after a failed list

	watching sync.WaitGroup     // of what other writers change, only for Available
	end      context.CancelFunc // of the watch
	wake     chan time.Time     // one slot: there is something in ended or seen
	ended    atomic.Bool        // the watch has ended, so another list is needed

	mu   sync.Mutex                               // guards seen
	seen map[string]*apiregistrationv1.APIService // :: APIService → its state, without spec. Bounded by their number
}

func (t *term) run(ctx context.Context) {
	t.wake, t.end, t.seen = make(chan time.Time, 1), func() {}, map[string]*apiregistrationv1.APIService{}
	timer := time.AfterFunc(relist, func() { latest.Wake(t.wake) }) // reset below
	defer timer.Stop()
	defer t.watching.Wait()
	defer func() { t.end() }() // of the last watch: a panic must not wait for ctx
	for now, changes := range latest.Changes(ctx, t.writer.config.Table, t.wake) {
		for _, c := range changes {
			switch e := cmp.Or(c.New, c.Old); {
			case e.Rule != nil: // it has no object
			case c.New == nil:
				delete(t.todo, e.Name)
			default:
				t.todo[e.Name] = e
			}
		}
		t.mu.Lock()
		seen := t.seen
		t.seen = map[string]*apiregistrationv1.APIService{}
		t.mu.Unlock()
		if (t.ended.Swap(false) || !time.Now().Before(t.due)) && t.list(ctx) {
			for _, e := range now.Servers() {
				if e.Rule == nil {
					t.todo[e.Name] = e
				}
			}
		}
		next := t.due
		if t.entries != nil { // before that everything would differ
			t.compare(seen, now)
			next = t.write(ctx)
		}
		timer.Reset(time.Until(next))
	}
}

// list reads the conditions from the apiserver: an Entry's Object is not renewed when only its status has changed.
func (t *term) list(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := t.writer.config.APIServices.List(call, metav1.ListOptions{})
	if err != nil {
		t.pause = retry(t.pause)
		t.due = time.Now().Add(t.pause)
		t.writer.log.Error("cannot read statuses", "err", err)
		return false
	}
	entries := make(map[string]*written, len(list.Items))
	for i := range list.Items {
		o := &list.Items[i]
		entries[o.Name] = t.of(o.Name)
		entries[o.Name].read(o, t.writer.condition)
	}
	t.entries, t.due, t.pause = entries, time.Now().Add(relist), 0
	if t.writer.condition == apiregistrationv1.Available {
		t.watch(ctx, list.ResourceVersion)
	}
	return true
}

func (w *written) read(o *apiregistrationv1.APIService, of apiregistrationv1.APIServiceConditionType) {
	w.uid, w.version, w.condition, w.since = o.UID, o.ResourceVersion, condition{}, metav1.Time{}
	if c := helper.GetAPIServiceConditionByType(o, of); c != nil {
		w.condition, w.since = condition{c.Status, c.Reason, c.Message}, c.LastTransitionTime
	}
}

func (t *term) of(name string) *written { return cmp.Or(t.entries[name], &written{}) }

// write applies each condition that differs and may be written now. It returns when to call next.
func (t *term) write(ctx context.Context) (next time.Time) {
	next = t.due
	for _, name := range slices.Sorted(maps.Keys(t.todo)) {
		e, have := t.todo[name], t.of(name)
		t.entries[name] = have
		if have.uid != e.Object.UID {
			*have = written{uid: e.Object.UID}
			if e.Local() { // kube-aggregator's strategy gives it one
				have.condition, _ = t.wanted(e)
			}
		}
		want, known := t.wanted(e)
		if known && want != have.condition && !time.Now().Before(have.mayWrite(want)) {
			t.replace(ctx, e, have, want)
			if ctx.Err() != nil {
				return next
			}
		}
		if !known || want == have.condition {
			delete(t.todo, name)
		} else if at := have.mayWrite(want); at.Before(next) {
			next = at
		}
	}
	return next
}

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
	to := apply.APIService(e.Name).WithUID(e.Object.UID).WithStatus(status)
	force := metav1.ApplyOptions{FieldManager: "fairlead", Force: true} // no other may own a condition of this name
	o, err := t.writer.config.APIServices.ApplyStatus(ctx, to, force)
	if err != nil {
		have.pause = retry(have.pause)
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

func (w *written) mayWrite(want condition) time.Time {
	if want.status == w.status && want.reason == w.reason {
		const rewording = 30 * time.Second // two alternating errors would otherwise cost one write a second forever
		return w.notBefore.Add(rewording - spacing)
	}
	return w.notBefore
}

// wanted returns the condition that an entry should have, or zero for none. Until it is known, the condition stays.
func (t *term) wanted(e *registry.Entry) (want condition, known bool) {
	v := e.Verdict
	switch ours := t.writer.condition == conditionType; {
	case !ours && e.Object.ResourceVersion == "": // read from a file, not stored
		return condition{}, false
	case ours && e.Local():
		return condition{}, true
	case v.Status == "":
		return condition{}, false
	}
	return condition{apiregistrationv1.ConditionStatus(v.Status), v.Reason, printable.Line(v.Message)}, true
}

func retry(pause time.Duration) time.Duration { return min(max(2*pause, spacing), lastRetry) }

// watch starts a new watch after a list. If it ends by itself, all is listed again after lastRetry.
func (t *term) watch(ctx context.Context, after string) {
	t.end()
	ctx, t.end = context.WithCancel(ctx)
	t.watching.Go(func() { // ends with run or the next list
		if t.receive(ctx, after); latest.Sleep(ctx, lastRetry) {
			t.ended.Store(true)
			latest.Wake(t.wake)
		}
	})
}

func (t *term) receive(ctx context.Context, after string) {
	w, err := t.writer.config.APIServices.Watch(ctx, metav1.ListOptions{ResourceVersion: after})
	if err != nil {
		return
	}
	defer w.Stop()
	defer context.AfterFunc(ctx, w.Stop)()
	for e := range w.ResultChan() {
		if o, ok := e.Object.(*apiregistrationv1.APIService); ok {
			t.mu.Lock()
			t.seen[o.Name] = &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion},
				Status:     o.Status,
			}
			t.mu.Unlock()
			latest.Wake(t.wake)
		}
	}
}

// compare finds conditions that other writers have changed, and has them replaced at once. After each loss it waits
// longer, up to relist: a kube-apiserver's own aggregator over the same keys would always write again.
func (t *term) compare(seen map[string]*apiregistrationv1.APIService, now latest.State[*registry.Entry]) {
	differ := map[string]bool{}
	for name, o := range seen {
		have := t.of(name)
		if n, err := resourceversion.CompareResourceVersion(o.ResourceVersion, have.version); err == nil && n <= 0 {
			continue // our own, or older than the list
		}
		t.entries[name] = have
		before := *have
		if have.read(o, t.writer.condition); have.condition == before.condition && have.uid == before.uid {
			continue
		}
		differ[name] = true
		if have.uid != before.uid || before.condition == (condition{}) {
			continue // it has replaced nothing
		}
		if time.Since(have.lostLast) > 2*relist {
			have.losses = 0
		}
		if have.losses, have.lostLast = have.losses+1, time.Now(); have.losses == 1 {
			continue
		}
		have.notBefore = have.lostLast.Add(min(spacing<<min(have.losses, 10), relist))
		if have.losses == 3 { // it persists
			t.writer.log.Warn("another writer writes this condition too: replacing it less and less often",
				"apiservice", name, "condition", t.writer.condition)
		}
	}
	if len(differ) == 0 {
		return
	}
	for _, e := range now.Servers() {
		if differ[e.Name] && e.Object.UID == t.entries[e.Name].uid { // otherwise the table will bring the new object
			t.todo[e.Name] = e
		}
	}
}

// Refusals tells which rules began to refuse since its last call: each replica does, because a client stays with one.
func (e *Events) Refusals(rules *policy.Gates, log *slog.Logger) {
	now := time.Now()
	for _, g := range rules.All() {
		if g.Begins(now) {
			log.Info("a rule "+map[bool]string{true: "would refuse", false: "refuses"}[g.DryRun]+" requests",
				"rule", g.Name, "action", g.Action, "place", g.Where)
			if to := e.recorder.Load(); to != nil && !g.DryRun {
				on := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap"}
				on.Namespace, on.Name = rules.Map.Namespace, rules.Map.Name
				if on.Name == "" {
					on.Kind, on.Name = "Namespace", metav1.NamespaceSystem
				}
				e.emitted.WithLabelValues(corev1.EventTypeWarning).Inc()
				(*to).Event(on, corev1.EventTypeWarning, "RuleRefuses",
					"rule "+g.Name+" ("+string(g.Action)+") refuses requests")
			}
		}
	}
}
