package status

import (
	"context"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apply "k8s.io/kube-aggregator/pkg/client/applyconfiguration/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

const (
	// conditionType is the one condition that is ours.
	conditionType = "fairlead.dev/Available"
	// fieldManager owns it: an apply without it takes it away again.
	fieldManager = "fairlead"
	// relist is how often the conditions are read again. Only this process should write them, so
	// this only repairs what others have done.
	relist = 10 * time.Minute
	// spacing is the least time between two writes of one APIService: one that flaps costs the
	// apiserver one write a second.
	spacing = time.Second
	// lastRetry bounds the pause after a write or a list that failed, which begins at spacing and
	// doubles.
	lastRetry = 30 * time.Second
	// callTimeout bounds one call to the apiserver, and so how long a hanging one delays the
	// others.
	callTimeout = 10 * time.Second
)

// condition is the part of our condition that is compared.
type condition struct {
	status          apiregistrationv1.ConditionStatus
	reason, message string
}

// written is what the apiserver has for one APIService. The zero value: no condition of ours.
type written struct {
	condition
	uid       types.UID // of the object that has it
	since     metav1.Time
	notBefore time.Time     // of the next write
	pause     time.Duration // after the last write, if that failed
}

// term is the time for which this replica leads.
type term struct {
	writer  *Writer
	entries map[string]*written        // :: APIService → what the apiserver has. Nil: that was not read yet
	todo    map[string]*registry.Entry // :: APIService → what may differ from that
	due     time.Time                  // of the next list
	pause   time.Duration              // after the last list, if that failed
}

// run writes what differs until ctx ends.
func (t *term) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for now, changes := range latest.Changes(ctx, t.writer.table, timer.C) {
		for _, c := range changes {
			if c.New == nil {
				delete(t.todo, c.Old.Name)
			} else {
				t.todo[c.New.Name] = c.New
			}
		}
		if !time.Now().Before(t.due) && t.list(ctx) {
			for _, e := range now.Entries() {
				t.todo[e.Name] = e
			}
		}
		next := t.due
		if t.entries != nil { // until then everything would seem to differ
			next = t.write(ctx)
		}
		timer.Reset(time.Until(next))
	}
}

// list reads what the apiserver has. The table will not do: an Entry's Object is not renewed when
// only a status has changed. False: it has failed.
func (t *term) list(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := t.writer.config.APIServices.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.pause = retry(t.pause)
		t.due = time.Now().Add(t.pause)
		t.writer.log.Error("cannot read statuses", "err", err)
		return false
	}
	entries := make(map[string]*written, len(list.Items))
	for i := range list.Items {
		o := &list.Items[i]
		have := t.of(o.Name)
		entries[o.Name] = have
		have.uid, have.condition, have.since = o.UID, condition{}, metav1.Time{}
		for _, c := range o.Status.Conditions {
			if c.Type == conditionType {
				have.condition, have.since = condition{c.Status, c.Reason, c.Message}, c.LastTransitionTime
			}
		}
	}
	t.entries, t.due, t.pause = entries, time.Now().Add(relist), 0
	return true
}

func (t *term) of(name string) *written {
	if have := t.entries[name]; have != nil {
		return have
	}
	return &written{}
}

// write applies every condition that differs and may be written now. It returns when the next one
// may.
func (t *term) write(ctx context.Context) (next time.Time) {
	next = t.due
	for _, name := range slices.Sorted(maps.Keys(t.todo)) {
		e, have := t.todo[name], t.of(name)
		t.entries[name] = have
		if have.uid != e.Object.UID {
			*have = written{uid: e.Object.UID} // deleted and made again: the new one has no condition
		}
		want, known := wanted(e)
		if known && want != have.condition && !time.Now().Before(have.notBefore) {
			t.replace(ctx, e, have, want)
			if ctx.Err() != nil {
				return next
			}
		}
		if !known || want == have.condition {
			delete(t.todo, name)
		} else if have.notBefore.Before(next) {
			next = have.notBefore
		}
	}
	return next
}

// replace applies one condition and notes what came of it.
func (t *term) replace(ctx context.Context, e *registry.Entry, have *written, want condition) {
	since := metav1.NewTime(e.Verdict.Since)
	if want.status == have.status {
		since = have.since // status unchanged: as Kubernetes' conditions have it, so is the time
	}
	err := t.apply(ctx, e.Name, want, since)
	if apierrors.IsNotFound(err) {
		// Deleted, and the table will say so; should it be there again with the same UID, a cache
		// was behind.
		have.pause = retry(have.pause)
		have.notBefore = time.Now().Add(have.pause)
		return
	}
	t.writer.metrics.wrote(err)
	if err != nil {
		have.pause = retry(have.pause)
		have.notBefore = time.Now().Add(have.pause)
		t.writer.log.Error("cannot write status", "apiservice", e.Name, "err", err)
		return
	}
	have.condition, have.since = want, since
	have.pause, have.notBefore = 0, time.Now().Add(spacing)
}

// wanted is the condition that an entry should have, the zero value for none. Not known: there is
// no verdict yet, so leave what is there.
func wanted(e *registry.Entry) (want condition, known bool) {
	if e.Local() {
		return condition{}, true
	}
	v := e.Verdict
	if v.Status == "" {
		return condition{}, false
	}
	return condition{apiregistrationv1.ConditionStatus(v.Status), v.Reason, v.Message}, true
}

// apply makes our condition what it should be, the zero value none. Nobody else's is touched.
func (t *term) apply(ctx context.Context, name string, want condition, since metav1.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status := apply.APIServiceStatus()
	if want != (condition{}) {
		status.WithConditions(apply.APIServiceCondition().WithType(conditionType).WithStatus(want.status).
			WithReason(want.reason).WithMessage(want.message).WithLastTransitionTime(since))
	}
	// Force: nobody else may own a condition of this name.
	_, err := t.writer.config.APIServices.ApplyStatus(ctx, apply.APIService(name).WithStatus(status),
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}

func retry(pause time.Duration) time.Duration {
	return min(max(2*pause, spacing), lastRetry)
}
