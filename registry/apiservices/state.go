package apiservices

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

// state is one immutable state of the served objects. Nothing in it is modified once published.
type state struct {
	read       bool                          // a complete table has been processed
	revision   uint64                        // the resourceVersion of the newest change
	objects    []*apiregistration.APIService // in order of name
	events     []watch.Event                 // the latest changes, one for each revision after floor
	floor      uint64
	superseded chan struct{} // closed once a newer state is stored
}

// history is how far the cache may be behind before it must relist: a change of every object of the largest table.
const history = 10_000

// store holds the current state. It is the storage below k8s.io/apiserver's watch cache.
type store struct {
	storage.Interface
	current atomic.Pointer[state]
	rest    etcd.REST     // has the cache
	ended   chan struct{} // closed by stop
}

func newStore() *store {
	s := &store{ended: make(chan struct{})}
	// Revisions begin above those of earlier processes: milliseconds, times more changes than fit
	// into one. With one of another replica a client gets "too old" or "too large" and relists.
	begin := uint64(time.Now().UnixMilli()) << 20
	s.current.Store(&state{revision: begin, floor: begin, superseded: make(chan struct{})})
	return s
}

func (s *store) stop() {
	close(s.ended)
	s.rest.Destroy()
}

func (s *store) follow(changes []latest.Change[*registry.Entry]) {
	old := s.current.Load()
	next := &state{
		read: true, revision: old.revision, objects: slices.Clone(old.objects), events: old.events, floor: old.floor,
		superseded: make(chan struct{}),
	}
	// The result must not depend on the table's order.
	slices.SortFunc(changes, func(a, b latest.Change[*registry.Entry]) int { return strings.Compare(a.Key(), b.Key()) })
	for _, c := range changes {
		if e := cmp.Or(c.New, c.Old); e.Rule != nil {
			continue
		}
		at, there := slices.BinarySearchFunc(next.objects, c.Key(), compareName)
		switch {
		case c.New == nil:
			next.record(watch.Deleted, next.objects[at].DeepCopy())
			next.objects = slices.Delete(next.objects, at, at+1)
		case there:
			next.objects[at] = next.update(c.New, next.objects[at])
		default:
			next.objects = slices.Insert(next.objects, at, next.update(c.New, nil))
		}
	}
	if next.revision == old.revision && old.read {
		return // no served object has changed
	}
	if extra := len(next.events) - history; extra > 0 {
		next.floor += uint64(extra)
		next.events = slices.Clone(next.events[extra:])
	}
	s.current.Store(next)
	close(old.superseded) // after the store: readers that wake up must find the new state
}

// update makes the object of an entry, or returns before if it is equal.
func (s *state) update(e *registry.Entry, before *apiregistration.APIService) *apiregistration.APIService {
	object := &apiregistration.APIService{}
	// The conversion never fails. The result shares memory with e.Object.
	_ = apiregistrationv1.Convert_v1_APIService_To_apiregistration_APIService(e.Object, object, nil)
	object.Status.Conditions = nil      // until a check has ended
	if v := e.Verdict; v.Status != "" { // as kube-aggregator would write it
		object.Status.Conditions = []apiregistration.APIServiceCondition{{
			Type: apiregistration.Available, Status: apiregistration.ConditionStatus(v.Status),
			Reason: v.Reason, Message: v.Message,
			LastTransitionTime: metav1.NewTime(v.Since.Truncate(time.Second)), // the wire has no fractions
		}}
	}
	if before == nil {
		s.record(watch.Added, object)
		return object
	}
	object.ResourceVersion = before.ResourceVersion
	if equality.Semantic.DeepEqual(object, before) {
		return before
	}
	s.record(watch.Modified, object)
	return object
}

// record adds a change with a new revision. object is the new state, or the last one of a deleted object.
func (s *state) record(kind watch.EventType, object *apiregistration.APIService) {
	s.revision++
	object.ResourceVersion = strconv.FormatUint(s.revision, 10)
	// Older states share the array, but their slices end before the new event.
	s.events = append(s.events, watch.Event{Type: kind, Object: object})
}

func compareName(o *apiregistration.APIService, name string) int {
	return strings.Compare(o.Name, name)
}
