package registry

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// FuzzGrown changes random objects in batches. The incrementally updated table equals one built from all objects, the
// table before it stays as it was, and the orders are total. Discovery's tests compare them with Kubernetes'.
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
			before, text := s.table, show(s.table)
			s.last, s.table = s.table, s.build(nil, s.table)
			s.checkUpdate(fmt.Sprint("step ", step))
			check.Same(t, text, show(before), "step %d: the table before it", step)
		}
		total(t, "legacy order", s.table.Entries(), compareLegacy)
		total(t, "order of groups", s.table.Groups(), (*Group).compare)
		for _, g := range s.table.Groups() {
			total(t, "order of versions", g.Entries, compareVersions)
			check.Same(t, true, s.table.Group(g.Name) == g, "Group(%q) is the same group", g.Name)
		}
	})
}

// total checks that a comparison is a total order: antisymmetric, transitive, and 0 only for equal arguments.
func total[T any](t *testing.T, name string, all []T, compare func(a, b T) int) {
	t.Helper()
	for i, a := range all {
		for j, b := range all {
			ab := compare(a, b)
			if (ab == 0) != (i == j) || ab != -compare(b, a) {
				t.Fatalf("%s: %+v and %+v compare as %d and %d", name, a, b, ab, compare(b, a))
			}
			for _, c := range all {
				if ab < 0 && compare(b, c) < 0 && compare(a, c) >= 0 {
					t.Fatalf("%s is not transitive: %+v, %+v, %+v", name, a, b, c)
				}
			}
		}
	}
}

// randomly changes or deletes one of a few objects.
func randomly(r *rand.Rand, b *batch) {
	service, gone := types.NamespacedName{Namespace: "extensions", Name: fmt.Sprintf("s%d", r.IntN(4))}, r.IntN(4) == 0
	var o apiserver.Object
	switch r.IntN(3) {
	case 0:
		versions := []string{"v1", "v2", "v10", "v1beta1", "v11alpha2", "foo1", "foo10", "v", "v01"}
		a := remoteService(fmt.Sprintf("g%d.example.com", r.IntN(5)), versions[r.IntN(len(versions))], service.Name)
		a.Spec.GroupPriorityMinimum, a.Spec.VersionPriority = r.Int32N(3), r.Int32N(3)
		if r.IntN(5) == 0 {
			a.Spec.Service = nil
		}
		o = a
	case 1:
		o = clusterIP(service)
	case 2:
		s := slice(service, fmt.Sprintf("10.1.0.%d", 1+r.IntN(4)))
		s.Name = fmt.Sprint(service.Name, "-", r.IntN(2))
		o = s
	}
	if b.objects[keyOf(o)] = o; gone {
		b.objects[keyOf(o)] = nil
	}
}

// Other options rebuild every entry, but equal options change nothing, nor does a resourceVersion.
func TestUnchangedTables(t *testing.T) {
	in := manyRemotes(100)
	table := Build(in, nil)
	a := in.APIServices["v1.group7.example.com"].DeepCopy()
	a.ResourceVersion = "2"
	in.APIServices[a.Name] = a
	in.Options = &Options{}
	check.Same(t, true, Build(in, table) == table, "the same table")
	in.Options = &Options{Defaults: Settings{MaxInFlight: 7}}
	next := Build(in, table)
	check.Same(t, table.Generation()+1, next.Generation(), "generation")
	e := next.Entries()[0]
	check.Same(t, true, e != table.Entries()[0] && e.Settings.MaxInFlight == 7, "entry under new options has %d in flight", e.Settings.MaxInFlight)
}
