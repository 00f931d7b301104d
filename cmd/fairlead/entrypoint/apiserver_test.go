package entrypoint

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	coordinationfake "k8s.io/client-go/kubernetes/typed/coordination/v1/fake"
	corefake "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	discoveryfake "k8s.io/client-go/kubernetes/typed/discovery/v1/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiserver keeps objects in memory and refuses updates of an old resourceVersion, as an apiserver
// does and client-go's tracker does not.
type apiserver struct {
	fake    clienttesting.Fake
	tracker clienttesting.ObjectTracker
	// down makes every call fail, full every write, refuse the writes of Endpoints.
	down, full, refuse atomic.Bool
	conflict           atomic.Pointer[string] // the next call of this verb for a Lease fails
	lastMoment         atomic.Bool            // the next Lease to be deleted is renewed before

	mu      sync.Mutex // guards the fields below
	version int
	writes  []string // verb and resource, without Leases
}

func newAPIServer(t *testing.T) *apiserver {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme} {
		must.Do(t, add(scheme))
	}
	s := &apiserver{tracker: clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())}
	s.fake.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		reads, resource := a.GetVerb() == "get" || a.GetVerb() == "list", a.GetResource()
		switch c := s.conflict.Load(); {
		case s.down.Load():
			return true, nil, errors.New("no route to host")
		case s.full.Load() && !reads:
			return true, nil, errors.New("etcdserver: mvcc: database space exceeded")
		case s.refuse.Load() && !reads && resource.Resource == "endpoints":
			return true, nil, errors.New("no")
		case c != nil && *c == a.GetVerb() && resource.Resource == "leases":
			s.conflict.Store(new(""))
			return true, nil, apierrors.NewConflict(resource.GroupResource(), "own", errors.New("changed meanwhile"))
		}
		return false, nil, nil
	})
	s.fake.AddReactor("*", "*", s.count)
	s.fake.AddReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o := a.(clienttesting.CreateAction).GetObject().DeepCopyObject()
		s.stamp(t, o)
		return true, o, s.tracker.Create(a.GetResource(), o, a.GetNamespace())
	})
	s.fake.AddReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o := a.(clienttesting.UpdateAction).GetObject().DeepCopyObject()
		return true, o, s.update(t, a, o)
	})
	s.fake.AddReactor("delete", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d := a.(clienttesting.DeleteAction)
		have, err := s.tracker.Get(a.GetResource(), a.GetNamespace(), d.GetName())
		if err != nil {
			return true, nil, err
		}
		if lease, ok := have.(*coordinationv1.Lease); ok && s.lastMoment.Swap(false) {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			must.Do(t, s.update(t, a, lease))
			have = lease
		}
		if p := d.GetDeleteOptions().Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != version(t, have) {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), d.GetName(), errors.New("changed meanwhile"))
		}
		return true, nil, s.tracker.Delete(a.GetResource(), a.GetNamespace(), d.GetName())
	})
	s.fake.AddReactor("*", "*", clienttesting.ObjectReaction(s.tracker))
	return s
}

func (s *apiserver) count(a clienttesting.Action) (bool, runtime.Object, error) {
	if v := a.GetVerb(); v != "get" && v != "list" && a.GetResource().Resource != "leases" {
		s.mu.Lock()
		s.writes = append(s.writes, v+" "+a.GetResource().Resource)
		s.mu.Unlock()
	}
	return false, nil, nil
}

func (s *apiserver) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writes)
}

func version(t *testing.T, o runtime.Object) string {
	t.Helper()
	m := must.Get(meta.Accessor(o))(t)
	return m.GetResourceVersion()
}

func (s *apiserver) stamp(t *testing.T, o runtime.Object) {
	t.Helper()
	m := must.Get(meta.Accessor(o))(t)
	s.mu.Lock()
	s.version++
	m.SetResourceVersion(strconv.Itoa(s.version))
	s.mu.Unlock()
}

func (s *apiserver) update(t *testing.T, a clienttesting.Action, o runtime.Object) error {
	t.Helper()
	m := must.Get(meta.Accessor(o))(t)
	have, err := s.tracker.Get(a.GetResource(), a.GetNamespace(), m.GetName())
	if err != nil {
		return err
	}
	if version(t, have) != m.GetResourceVersion() {
		return apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(), errors.New("changed meanwhile"))
	}
	s.stamp(t, o)
	return s.tracker.Update(a.GetResource(), o, a.GetNamespace())
}

func (s *apiserver) config() Config {
	return Config{
		Endpoints: &corefake.FakeCoreV1{Fake: &s.fake}, Slices: &discoveryfake.FakeDiscoveryV1{Fake: &s.fake}, Leases: &coordinationfake.FakeCoordinationV1{Fake: &s.fake},
	}
}

// published returns the addresses in the Endpoints and the EndpointSlices, which must be equal.
func (s *apiserver) published(t *testing.T) string {
	t.Helper()
	c := s.config()
	e, err := c.Endpoints.Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "nothing"
	}
	if err != nil {
		t.Fatal(err)
	}
	list := must.Get(c.Slices.EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
	var all corev1.Endpoints
	for i := range list.Items {
		for _, p := range list.Items[i].Ports {
			subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: *p.Name, Port: *p.Port}}}
			for _, e := range list.Items[i].Endpoints {
				if r := e.Conditions.Ready; r != nil && *r {
					subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: e.Addresses[0]})
				}
			}
			all.Subsets = append(all.Subsets, subset)
		}
	}
	if content(e) != content(&all) {
		t.Errorf("Endpoints contain %q, EndpointSlices %q", content(e), content(&all))
	}
	return content(e)
}

// overwrite does what kube-apiserver's reconciler does: it sets the subsets of the Endpoints (to
// none if address is empty), keeps their annotations, if there are any, and replaces the
// EndpointSlice.
func (s *apiserver) overwrite(t *testing.T, address string, annotated bool) {
	t.Helper()
	c := s.config()
	e := must.Get(c.Endpoints.Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	e.Subsets = nil
	if !annotated {
		e.Annotations = nil
	}
	g := group{kind: discoveryv1.AddressTypeIPv4, port: 6443}
	if address != "" {
		g.addresses = []string{address}
		e.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address}}, Ports: []corev1.EndpointPort{{Name: "https", Port: 6443, Protocol: "TCP"}}}}
	}
	must.Get(c.Endpoints.Endpoints("default").Update(t.Context(), e, metav1.UpdateOptions{}))(t)
	have := must.Get(c.Slices.EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	fresh := g.slice("kubernetes")
	fresh.Annotations, fresh.Labels, fresh.ResourceVersion = nil, map[string]string{discoveryv1.LabelServiceName: "kubernetes"}, have.ResourceVersion
	must.Get(c.Slices.EndpointSlices("default").Update(t.Context(), fresh, metav1.UpdateOptions{}))(t)
}
