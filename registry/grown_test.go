package registry

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// FuzzGrown changes random objects in batches. The incrementally updated table equals one built
// from all objects.
func FuzzGrown(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		s := &teller{T: t, objects: newObjects(), now: time.Unix(0, 0).UTC()}
		s.table = Build(Input{Options: &s.options}, nil)
		r := rand.New(rand.NewPCG(seed, 0))
		for step := range 100 {
			b := batch{objects: make(map[key]runtime.Object)}
			for range 1 + r.IntN(3) {
				randomly(r, &b)
			}
			s.objects.apply(&b)
			s.table = s.build(nil, s.table)
			if got, want := layoutOf(s.table), layoutOf(s.build(nil, nil)); got != want {
				t.Fatalf("step %d: the updated table differs from a new one:\n%s", step, cmp.Diff(want, got))
			}
		}
	})
}

// TestAnotherGroupVersion: an APIService whose group or version priority changes gets the same
// place as a new one.
func TestAnotherGroupVersion(t *testing.T) {
	object := func(group string, priority int32) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.a.io"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: priority,
		}}
	}
	in := Input{Options: &Options{}, Now: time.Unix(0, 0), APIServices: map[string]*apiregistrationv1.APIService{
		"v1.a.io": object("a.io", 1), "v2.a.io": ranked("a.io", 100, false), "v1.b.io": ranked("b.io", 100, false), "v1.c.io": ranked("c.io", 100, false),
	}}
	in.APIServices["v2.a.io"].Name, in.APIServices["v2.a.io"].Spec.Version = "v2.a.io", "v2" // another version of its group
	table := Build(in, nil)
	for _, now := range []*apiregistrationv1.APIService{object("a.io", 1000), object("a.io", 1), object("d.io", 1), object("b.io", 1), object("a.io", 1)} {
		in.APIServices["v1.a.io"] = now
		table = Build(in, table)
		if got, want := layoutOf(table), layoutOf(Build(in, nil)); got != want {
			t.Errorf("group %s, priority %d: %s", now.Spec.Group, now.Spec.VersionPriority, cmp.Diff(want, got))
		}
	}
}

// randomly changes or deletes one of a few objects.
func randomly(r *rand.Rand, b *batch) {
	n, gone := r.IntN(4), r.IntN(4) == 0
	service := fmt.Sprintf("s%d", n)
	meta := metav1.ObjectMeta{Namespace: "ns", Name: service}
	var o object
	switch r.IntN(3) {
	case 0:
		group, version := fmt.Sprintf("g%d.example.com", r.IntN(5)), fmt.Sprintf("v%d", 1+r.IntN(3))
		meta = metav1.ObjectMeta{Name: version + "." + group}
		a := &apiregistrationv1.APIService{ObjectMeta: meta, Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: r.Int32N(3), VersionPriority: r.Int32N(3), InsecureSkipTLSVerify: true,
		}}
		if r.IntN(5) > 0 {
			a.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "ns", Name: service, Port: new(int32(443))}
		}
		o = a
	case 1:
		o = &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Name: "p", Port: 443}},
		}}
	case 2:
		meta.Name += fmt.Sprint("-", r.IntN(2))
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		o = &discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("p"), Port: new(int32(8443)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.1.0.%d", 1+r.IntN(4))}}},
		}
	}
	if b.objects[keyOf(o)] = o; gone {
		b.objects[keyOf(o)] = nil
	}
}
