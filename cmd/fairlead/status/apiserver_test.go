package status

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// apiserver keeps Leases and APIServices in memory and implements server-side apply of our
// condition, which client-go's tracker does not.
type apiserver struct {
	client  fake.Clientset
	tracker clienttesting.ObjectTracker
	// down makes every call fail, denied the calls for one APIService.
	down     atomic.Bool
	denied   atomic.Pointer[string]
	revision atomic.Int64 // the resourceVersion of the latest write

	// blind makes the first watch show nothing.
	blind, begun atomic.Bool
	first        *watch.FakeWatcher
	uids         map[string]int // how often each APIService was made

	mu      sync.Mutex // guards patches
	patches []patch
}

// patch is a write of a status.
type patch struct {
	name string
	body string
	at   time.Time
}

func newAPIServer(t *testing.T) *apiserver {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, corev1.AddToScheme, apiregistrationv1.AddToScheme} {
		must.Do(t, add(scheme))
	}
	s := &apiserver{tracker: clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder()), uids: map[string]int{}, first: watch.NewFake()}
	s.client.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return s.down.Load(), nil, errors.New("no route to host")
	})
	s.client.AddReactor("patch", "apiservices", s.applyStatus)
	s.client.AddReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		lease := a.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).DeepCopy()
		return true, lease, s.updateLease(lease)
	})
	s.client.AddReactor("*", "*", clienttesting.ObjectReaction(s.tracker))
	s.client.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		if s.blind.Load() && !s.begun.Swap(true) {
			return true, s.first, nil
		}
		w, err := s.tracker.Watch(a.GetResource(), a.GetNamespace())
		return true, w, err
	})
	return s
}

// updateLease refuses updates of an old resourceVersion, as an apiserver does and client-go's tracker does not.
func (s *apiserver) updateLease(lease *coordinationv1.Lease) error {
	resource := coordinationv1.SchemeGroupVersion.WithResource("leases")
	o, err := s.tracker.Get(resource, lease.Namespace, lease.Name)
	if err != nil {
		return err
	}
	if o.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
		return apierrors.NewConflict(resource.GroupResource(), lease.Name, errors.New("changed meanwhile"))
	}
	lease.ResourceVersion += "+"
	return s.tracker.Update(resource, lease, lease.Namespace)
}

func (s *apiserver) applyStatus(a clienttesting.Action) (bool, runtime.Object, error) {
	p := a.(clienttesting.PatchActionImpl)
	if d := s.denied.Load(); d != nil && *d == p.Name {
		return true, nil, apierrors.NewForbidden(p.Resource.GroupResource(), p.Name, errors.New("denied"))
	}
	if o := p.PatchOptions; p.PatchType != types.ApplyPatchType || p.Subresource != "status" || o.FieldManager != "fairlead" || o.Force == nil || !*o.Force {
		return true, nil, errors.New("not a forced apply of the status by fairlead")
	}
	s.mu.Lock()
	s.patches = append(s.patches, patch{p.Name, string(p.Patch), time.Now()})
	s.mu.Unlock()
	o, err := s.tracker.Get(p.Resource, "", p.Name)
	if err != nil {
		return true, nil, err
	}
	var applied apiregistrationv1.APIService
	if err := json.Unmarshal(p.Patch, &applied); err != nil {
		return true, nil, err
	}
	next := o.(*apiregistrationv1.APIService).DeepCopy()
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
		return c.Type == conditionType || len(applied.Status.Conditions) > 0 && c.Type == applied.Status.Conditions[0].Type
	})
	next.ResourceVersion = strconv.FormatInt(s.revision.Add(1), 10)
	next.Status.Conditions = append(next.Status.Conditions, applied.Status.Conditions...)
	return true, next, s.tracker.Update(p.Resource, next, "")
}

// steal gives the Lease to another holder until it expires.
func (s *apiserver) steal(t *testing.T) {
	t.Helper()
	o := must.Get(s.tracker.Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "kube-system", "fairlead-status"))(t)
	stolen, thief, now := o.(*coordinationv1.Lease).DeepCopy(), "thief", metav1.NewMicroTime(time.Now())
	stolen.Spec.HolderIdentity, stolen.Spec.RenewTime = &thief, &now
	must.Do(t, s.updateLease(stolen))
}
