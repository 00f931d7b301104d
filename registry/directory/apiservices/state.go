package apiservices

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// state is one immutable state of the served objects. Nothing reachable from it is changed once it is published.
type state struct {
	// read says that a complete table has been seen.
	read bool
	// revision is the resourceVersion of the newest change.
	revision uint64
	// objects in order of name.
	objects []*apiregistrationv1.APIService
	// events are the latest changes, ascending. Whoever knows a revision of at least floor can be told everything since.
	events []change
	floor  uint64
	// superseded is closed once a newer state is in place.
	superseded chan struct{}
}

// change is one event of the history.
type change struct {
	kind     watch.EventType
	revision uint64
	// object is the new state, of a deletion the last one; before is what it was, nil when it was not there.
	object, before *apiregistrationv1.APIService
}

// history is how many changes a watcher may be behind. A watcher that is further behind lists again; 10,000 is every object of the largest
// supported table once.
const history = 10_000

// store holds the current state. It is the storage of k8s.io/apiserver's handlers.
type store struct {
	current atomic.Pointer[state]
}

func newStore() *store {
	s := &store{}
	// Revisions begin where those of an earlier or another process end or will have ended: milliseconds, times more changes than fit into one.
	// A client that brings a revision of another replica is told that it is too old or too new and lists again.
	begin := uint64(time.Now().UnixMilli()) << 20
	s.current.Store(&state{revision: begin, floor: begin, superseded: make(chan struct{})})
	return s
}

func (s *store) state() *state { return s.current.Load() }

// Run follows the table until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	for t, changes := range latest.Changes(ctx, s.table, nil) {
		if t.Complete() {
			s.store.follow(changes)
		}
	}
	return ctx.Err()
}

// follow publishes what a table has changed.
func (s *store) follow(changes []latest.Change[*registry.Entry]) {
	old := s.state()
	next := &state{read: true, revision: old.revision, objects: slices.Clone(old.objects), events: old.events, floor: old.floor, superseded: make(chan struct{})}
	slices.SortFunc(changes, func(a, b latest.Change[*registry.Entry]) int { return strings.Compare(a.Key(), b.Key()) }) // so that it does not depend on the table's order
	for _, c := range changes {
		at, there := slices.BinarySearchFunc(next.objects, c.Key(), compareName)
		switch {
		case c.New == nil:
			next.record(watch.Deleted, next.objects[at].DeepCopy(), next.objects[at])
			next.objects = slices.Delete(next.objects, at, at+1)
		case there:
			next.objects[at] = next.update(c.New, next.objects[at])
		default:
			next.objects = slices.Insert(next.objects, at, next.update(c.New, nil))
		}
	}
	if next.revision == old.revision && old.read {
		return // nothing that is served has changed
	}
	if extra := len(next.events) - history; extra > 0 {
		next.floor = next.events[extra-1].revision
		next.events = slices.Clone(next.events[extra:])
	}
	s.current.Store(next)
	close(old.superseded) // after the store: whoever wakes up must find the new state
}

// update makes the object of an entry, or returns the one before when nothing that is served has changed.
func (s *state) update(e *registry.Entry, before *apiregistrationv1.APIService) *apiregistrationv1.APIService {
	object := e.Object.DeepCopy()
	object.Status.Conditions = conditions(e.Verdict)
	if before == nil {
		s.record(watch.Added, object, nil)
		return object
	}
	object.ResourceVersion = before.ResourceVersion
	if equality.Semantic.DeepEqual(object, before) {
		return before
	}
	s.record(watch.Modified, object, before)
	return object
}

// record gives a change its revision.
func (s *state) record(kind watch.EventType, object, before *apiregistrationv1.APIService) {
	s.revision++
	object.ResourceVersion = strconv.FormatUint(s.revision, 10)
	// Older states share the array: they see only what was in it when they were published.
	s.events = append(s.events, change{kind: kind, revision: s.revision, object: object, before: before})
}

// get finds an object by name.
func (s *state) get(name string) *apiregistrationv1.APIService {
	at, found := slices.BinarySearchFunc(s.objects, name, compareName)
	if !found {
		return nil
	}
	return s.objects[at]
}

func compareName(o *apiregistrationv1.APIService, name string) int {
	return strings.Compare(o.Name, name)
}

// since returns the changes after a revision.
func (s *state) since(revision uint64) []change {
	at, found := slices.BinarySearchFunc(s.events, revision, func(c change, revision uint64) int { return cmp.Compare(c.revision, revision) })
	if found {
		at++
	}
	return s.events[at:]
}

// conditions are the verdict as kube-aggregator would have written it: none until the first check has ended.
func conditions(v registry.Verdict) []apiregistrationv1.APIServiceCondition {
	if v.Status == "" {
		return nil
	}
	return []apiregistrationv1.APIServiceCondition{{
		Type:               apiregistrationv1.Available,
		Status:             apiregistrationv1.ConditionStatus(v.Status),
		LastTransitionTime: metav1.NewTime(v.Since.Truncate(time.Second)), // the wire has no fractions
		Reason:             v.Reason,
		Message:            v.Message,
	}}
}
