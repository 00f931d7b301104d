package registry

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// someEntries makes entries with many ties: few priorities, few groups, versions of every form.
func someEntries(rng *rand.Rand, n int) Input {
	in := manyRemotes(0)
	versions := []string{"v1", "v2", "v10", "v1beta1", "v1beta2", "v2beta1", "v1alpha1", "v11alpha2", "foo1", "foo10", "v", "v01", "x1"}
	for range n {
		group := string(rune('a'+rng.IntN(6))) + ".io"
		a := remoteService(group, versions[rng.IntN(len(versions))], "server")
		a.Spec.GroupPriorityMinimum = int32(1 + rng.IntN(3))
		a.Spec.VersionPriority = int32(1 + rng.IntN(3))
		in.APIServices[a.Name] = a
	}
	return in
}

// total checks that a comparison is a total order: antisymmetric, transitive, and 0 only for equal
// arguments.
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

func TestOrdersAreTotal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		table := Build(someEntries(rng, 40), nil)
		total(t, "legacy order", table.Entries(), compareLegacy)
		total(t, "order of groups", table.Groups(), (*Group).Compare)
		for _, g := range table.Groups() {
			total(t, "order of versions", g.Entries, make(versionOrder).compare)
		}
	}
}

// TestOrders checks the documents' orders against a second implementation of their definition.
func TestOrders(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		table := Build(someEntries(rng, 30), nil)
		highest := make(map[string]int32)
		for i, e := range table.Entries() {
			g := e.GroupVersion.Group
			highest[g] = max(highest[g], e.Object.Spec.GroupPriorityMinimum)
			if i == 0 {
				continue
			}
			p := table.Entries()[i-1]
			if p.Object.Spec.GroupPriorityMinimum < e.Object.Spec.GroupPriorityMinimum ||
				p.Object.Spec.GroupPriorityMinimum == e.Object.Spec.GroupPriorityMinimum && p.Name >= e.Name {
				t.Fatalf("%s comes before %s", p.Name, e.Name)
			}
		}
		members := 0
		for i, g := range table.Groups() {
			if g.Priority != highest[g.Name] {
				t.Fatalf("group %s has priority %d, want %d", g.Name, g.Priority, highest[g.Name])
			}
			if i > 0 {
				p := table.Groups()[i-1]
				if p.Priority < g.Priority || p.Priority == g.Priority && p.Name >= g.Name {
					t.Fatalf("group %s comes before %s", p.Name, g.Name)
				}
			}
			if table.Group(g.Name).Name != g.Name {
				t.Fatalf("Group(%q) returns another group", g.Name)
			}
			members += len(g.Entries)
			for j, e := range g.Entries {
				if e.GroupVersion.Group != g.Name || table.Entry(e.GroupVersion) != e {
					t.Fatalf("%s is in group %s", e.Name, g.Name)
				}
				if j == 0 {
					continue
				}
				p := g.Entries[j-1]
				if p.Object.Spec.VersionPriority < e.Object.Spec.VersionPriority || p.Object.Spec.VersionPriority == e.Object.Spec.VersionPriority &&
					version.CompareKubeAwareVersionStrings(p.GroupVersion.Version, e.GroupVersion.Version) < 0 { // 0: v01 and v1
					t.Fatalf("%s comes before %s", p.Name, e.Name)
				}
			}
		}
		if members != len(table.Entries()) {
			t.Fatalf("%d entries in groups, %d in all", members, len(table.Entries()))
		}
	}
}

// Versions that Kubernetes takes for equal are ordered by name.
func TestEqualVersions(t *testing.T) {
	in := manyRemotes(0)
	for _, version := range []string{"v1", "v01"} {
		a := remoteService("a.io", version, "server")
		in.APIServices[a.Name] = a
	}
	entries := Build(in, nil).Group("a.io").Entries
	if entries[0].Name != "v01.a.io" || entries[0].CompareVersion(entries[1]) >= 0 || entries[1].CompareVersion(entries[0]) <= 0 {
		t.Errorf("%s comes before %s", entries[0].Name, entries[1].Name)
	}
}

// TestGrownTableEqualsFresh changes a table at random. After every step it compares it with a new
// table, and checks that the previous table did not change.
func TestGrownTableEqualsFresh(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	in := someEntries(rng, 20)
	table := Build(in, nil)
	for step := range 300 {
		before, text := table, show(table)
		names := slices.Sorted(maps.Keys(in.APIServices))
		changed := someEntries(rng, 1+rng.IntN(3)).APIServices
		switch rng.IntN(4) {
		case 0:
			delete(in.APIServices, names[rng.IntN(len(names))])
		case 1:
			service := types.NamespacedName{Namespace: "extensions", Name: "server"}
			in.Services[service] = clusterIP(service)
			in.Slices[service] = nil
			if rng.IntN(2) == 0 {
				in.Slices[service] = append(in.Slices[service], slice(service, fmt.Sprintf("10.0.0.%d", rng.IntN(250)+1)))
			}
		default:
			maps.Copy(in.APIServices, changed)
		}
		table = Build(in, table)
		if got, want := layoutOf(table), layoutOf(Build(in, nil)); got != want {
			t.Fatalf("step %d: updated table\n%s\nnew table\n%s", step, got, want)
		}
		if show(before) != text {
			t.Fatalf("step %d changed the table before it", step)
		}
		if len(table.Entries()) == 0 {
			t.Fatal("no entries are left")
		}
	}
}

func TestUnchangedEntriesKeepTheirPointers(t *testing.T) {
	in := manyRemotes(100)
	table := Build(in, nil)
	if again := Build(in, table); again != table {
		t.Error("the same input made another table")
	}
	a := in.APIServices["v1.group7.example.com"].DeepCopy()
	a.ResourceVersion = "2"
	in.APIServices[a.Name] = a
	if again := Build(in, table); again != table {
		t.Error("a new resourceVersion made another table")
	}
	a = a.DeepCopy()
	a.Spec.VersionPriority++
	in.APIServices[a.Name] = a
	next := Build(in, table)
	check.Same(t, table.Generation()+1, next.Generation(), "generation")
	for _, e := range next.Entries() {
		old := table.named(e.Name)
		if (e == old) == (e.Name == a.Name) {
			t.Errorf("entry %s unchanged: %v", e.Name, e == old)
		}
		if e.Backend != old.Backend {
			t.Errorf("the backend of %s changed", e.Name)
		}
	}
	// Other options rebuild every entry, but equal entries stay the same.
	in.Options = &Options{Defaults: Policy{MaxInFlight: 7}}
	if e := Build(in, next).Entries()[0]; e == next.Entries()[0] || e.Policy.MaxInFlight != 7 {
		t.Errorf("entry under new options has %d in flight", e.Policy.MaxInFlight)
	}
	in.Options = &Options{}
	if Build(in, next) != next {
		t.Error("equal options made another table")
	}
}

func TestCompareBool(t *testing.T) {
	for _, a := range []bool{false, true} {
		for _, b := range []bool{false, true} {
			n := map[bool]int{true: 1}
			check.Same(t, cmp.Compare(n[a], n[b]), compareBool(a, b), "compareBool(%v, %v)", a, b)
		}
	}
}
