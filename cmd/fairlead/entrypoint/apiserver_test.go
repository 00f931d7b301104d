package entrypoint

import (
	"errors"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestMain(m *testing.M) { must.Main(m) }

// apiserver keeps objects in memory and refuses updates of an old resourceVersion, as an apiserver
// does and client-go's tracker does not.
type apiserver struct {
	client  fake.Clientset
	tracker clienttesting.ObjectTracker
	// down makes every call fail, full every write.
	down, full      atomic.Bool
	refuse          atomic.Pointer[string] // "reads" or "writes" of Endpoints fail
	conflict        atomic.Pointer[string] // the next call of this verb for a Lease fails
	lastMoment      atomic.Bool            // the next Lease to be deleted is renewed before
	version, writes atomic.Int64           // writes without those of Leases
}

func newAPIServer() *apiserver {
	s := &apiserver{tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	s.client.AddReactor("*", "*", s.answer)
	return s
}

func (s *apiserver) answer(a clienttesting.Action) (bool, runtime.Object, error) {
	verb, resource := a.GetVerb(), a.GetResource()
	reads, lease := verb == "get" || verb == "list", resource.Resource == "leases"
	switch c, refused := s.conflict.Load(), s.refuse.Load(); {
	case s.down.Load():
		return true, nil, errors.New("no route to host")
	case s.full.Load() && !reads:
		return true, nil, errors.New("etcdserver: mvcc: database space exceeded")
	case refused != nil && (*refused == "reads") == reads && resource.Resource == "endpoints":
		return true, nil, errors.New("no")
	case c != nil && *c == verb && lease:
		s.conflict.Store(new(""))
		return true, nil, changed(a)
	case !reads && !lease:
		s.writes.Add(1)
	}
	switch a := a.(type) {
	case clienttesting.CreateActionImpl:
		o := s.stamp(a.Object)
		return true, o, s.tracker.Create(resource, o, a.Namespace)
	case clienttesting.UpdateActionImpl:
		o, err := s.update(a, a.Object)
		return true, o, err
	case clienttesting.DeleteActionImpl:
		have, err := s.tracker.Get(resource, a.Namespace, a.Name)
		if err != nil {
			return true, nil, err
		}
		if l, ok := have.(*coordinationv1.Lease); ok && s.lastMoment.Swap(false) {
			l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if have, err = s.update(a, l); err != nil {
				return true, nil, err
			}
		}
		if p := a.DeleteOptions.Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != have.(metav1.Object).GetResourceVersion() {
			return true, nil, changed(a)
		}
	}
	return clienttesting.ObjectReaction(s.tracker)(a)
}

func changed(a clienttesting.Action) error {
	return apierrors.NewConflict(a.GetResource().GroupResource(), "it", errors.New("changed meanwhile"))
}

// stamp returns an object in a new version.
func (s *apiserver) stamp(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	o.(metav1.Object).SetResourceVersion(strconv.FormatInt(s.version.Add(1), 10))
	return o
}

func (s *apiserver) update(a clienttesting.Action, o runtime.Object) (runtime.Object, error) {
	m := o.(metav1.Object)
	have, err := s.tracker.Get(a.GetResource(), a.GetNamespace(), m.GetName())
	if err != nil {
		return nil, err
	}
	if have.(metav1.Object).GetResourceVersion() != m.GetResourceVersion() {
		return nil, changed(a)
	}
	o = s.stamp(o)
	return o, s.tracker.Update(a.GetResource(), o, a.GetNamespace())
}

func (s *apiserver) config() Config { return Config{Client: &s.client} }

// published returns the addresses in the Endpoints and the EndpointSlices, which must be equal.
func (s *apiserver) published(t *testing.T) string {
	t.Helper()
	c := s.config()
	e, err := c.Client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "nothing"
	}
	must.Do(t, err)
	list := must.Get(c.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
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
	check.Same(t, true, content(e) == content(&all), "Endpoints contain %q, EndpointSlices %q", content(e), content(&all))
	return content(e)
}

// overwrite does what kube-apiserver's reconciler does: it sets the subsets of the Endpoints (to none if address is
// empty), keeps their annotations, if there are any, and replaces the EndpointSlice.
func (s *apiserver) overwrite(t *testing.T, address string, annotated bool) {
	t.Helper()
	c := s.config()
	e := must.Get(c.Client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	e.Subsets = nil
	if !annotated {
		e.Annotations = nil
	}
	g := group{kind: discoveryv1.AddressTypeIPv4, port: 6443}
	if address != "" {
		g = groups(map[netip.AddrPort]string{netip.AddrPortFrom(netip.MustParseAddr(address), 6443): ""})[0]
		e.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address}}, Ports: []corev1.EndpointPort{{Name: "https", Port: 6443, Protocol: "TCP"}}}}
	}
	must.Get(c.Client.CoreV1().Endpoints("default").Update(t.Context(), e, metav1.UpdateOptions{}))(t)
	have := must.Get(c.Client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	fresh := g.slice("kubernetes")
	fresh.Annotations, fresh.Labels, fresh.ResourceVersion = nil, map[string]string{discoveryv1.LabelServiceName: "kubernetes"}, have.ResourceVersion
	must.Get(c.Client.DiscoveryV1().EndpointSlices("default").Update(t.Context(), fresh, metav1.UpdateOptions{}))(t)
}

// families makes the Service kubernetes, with families of IP.
func (s *stage) families(all []string) {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}}
	for _, f := range all {
		o.Spec.IPFamilies = append(o.Spec.IPFamilies, corev1.IPFamily(f))
	}
	must.Get(s.config().Client.CoreV1().Services("default").Create(s.Context(), o, metav1.CreateOptions{}))(s)
}
