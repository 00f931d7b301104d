package registry

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// keyOf returns the writer's key of an object.
func keyOf(o metav1.Object) key {
	k := key{kindSlice, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}}
	switch o.(type) {
	case *apiregistrationv1.APIService:
		k.kind = kindAPIService
	case *corev1.Service:
		k.kind = kindService
	}
	return k
}

// put adds or changes objects.
func put(c *changes, all ...apiserver.Object) {
	for _, o := range all {
		c.set(keyOf(o), o)
	}
}

// reported makes a registry with an endpoint that was not probed yet, and a good report about it.
// step is the writer's.
func reported(t *testing.T) (r *Registry, step func() *Table, good Report) {
	t.Helper()
	r, o := newRegistry(Config{}, nil), newObjects()
	for k := range kinds {
		r.changes.replace(k, nil)
	}
	service := types.NamespacedName{Namespace: "extensions", Name: "server"}
	put(r.changes, remoteService("a.io", "v1", "server"), clusterIP(service), slice(service, "10.0.0.1"))
	step = func() *Table {
		r.step(o)
		return r.Table()
	}
	e := step().named("v1.a.io")
	return r, step, Report{Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: "10.0.0.1:8443", Health: Healthy}}
}

// bad is a report of the opposite.
func bad(r Report) Report {
	r.Health, r.Reason, r.Message = Unhealthy, ReasonFailedDiscoveryCheck, "refused"
	return r
}

// Only a report that changes something makes a table. Of two in one batch the later one counts.
func TestReport(t *testing.T) {
	r, step, good := reported(t)
	name, backend, address, untrusted := good, good, good, bad(good)
	name.Name, backend.Backend, address.Address = "v1.b.io", &Backend{}, "10.0.0.9:8443"
	untrusted.Reason = ReasonInvalidCABundle
	for _, tt := range []struct {
		what    string
		reports []Report
		want    Health // of the endpoint
		another bool   // table
	}{
		{"another APIService, Backend and address", []Report{name, backend, address}, Unprobed, false},
		{"healthy", []Report{good}, Healthy, true},
		{"unhealthy", []Report{bad(good)}, Unhealthy, true},
		{"unhealthy for another reason", []Report{untrusted}, Unhealthy, true},
		{"the same again", []Report{untrusted}, Unhealthy, false},
		{"two that cancel each other", []Report{good, untrusted}, Unhealthy, false},
		{"two, of which the later is new", []Report{bad(good), good}, Healthy, true},
	} {
		before := r.Table()
		for _, report := range tt.reports {
			r.Report(report)
		}
		after := step()
		check.Same(t, tt.another, after != before, "%s: another table", tt.what)
		check.Same(t, tt.want, after.named(good.Name).Endpoints[0].Health, "%s: health", tt.what)
	}
}

// A report that equals the table counts while the writer makes a table of an opposite one: the
// prober does not repeat it.
func TestReportDuringBuild(t *testing.T) {
	r, step, good := reported(t)
	r.Report(good)
	step()
	r.Report(bad(good))
	taken := r.changes.take() // what step does first
	r.Report(good)
	check.Same(t, [2]int{1, 1}, [2]int{len(taken.reports), len(r.changes.reports)}, "reports that the writer has, and pending ones")
	before := step()
	r.Report(good)
	check.Same(t, true, step() == before && before.named(good.Name).Verdict.Available(), "after the build, a report that changes nothing made a table:\n%s", show(r.Table()))
}

// A late report about a former Backend does not replace that about its successor, which the prober does not repeat.
func TestReportOfAFormerBackend(t *testing.T) {
	r, step, former := reported(t)
	moved := remoteService("a.io", "v1", "server")
	moved.Annotations = map[string]string{prefix + "http1": "true"}
	put(r.changes, moved)
	good := former
	good.Backend = step().named(former.Name).Backend
	must.Be(t, good.Backend != former.Backend, "the Backend stays")
	r.Report(good)
	r.Report(bad(former))
	check.Same(t, Healthy, step().named(good.Name).Endpoints[0].Health, "health")
}

// What the cluster's aggregator sends to this Fairlead is not left to that aggregator, nor may the cluster name URLs.
func TestAdoptedIsNotLocal(t *testing.T) {
	a := remoteService("a.io", "v1", "fairlead")
	a.Annotations = map[string]string{behind.Service: "x/server:443", urlAnnotation: "https://example.com"}
	for _, front := range []types.NamespacedName{nameOf(a.Spec.Service), {}} {
		(&sources{front: front}).asLocal(a)
		check.Same(t, front.Name == "", isLocal(a), "behind %s: it is Local", front)
		check.Same(t, "", a.Annotations[urlAnnotation], "behind %s: URL", front)
	}
}

// What the writer looks at for each table does not grow with what the local apiserver serves, only
// with what others have, too.
func TestFaultsOfSeveralSources(t *testing.T) {
	o, served := newObjects(), make(map[types.NamespacedName]runtime.Object)
	for i := range 1000 {
		a := remoteService(fmt.Sprintf("g%d.io", i), "v1", "server")
		(&sources{}).asLocal(a)
		served[types.NamespacedName{Name: a.Name}] = a
	}
	name := types.NamespacedName{Name: "v1.g7.io"}
	for _, tt := range []struct {
		what  kind
		all   map[types.NamespacedName]runtime.Object
		notes int
	}{
		{kindServed, served, 0},
		{kindAPIService, map[types.NamespacedName]runtime.Object{name: remoteService("g7.io", "v1", "server")}, 1},
		{kindFallback, map[types.NamespacedName]runtime.Object{name: remoteService("g7.io", "v1", "other")}, 2},
		{kindServed, nil, 1},
		{kindAPIService, nil, 0},
	} {
		b := newBatch()
		b.empty(tt.what)
		for name, object := range tt.all {
			b.objects[key{tt.what, name}] = object
		}
		o.apply(&b)
		check.Same(t, tt.notes, len(o.faults()), "notes")
		check.Same(t, min(tt.notes, 1), len(o.several), "APIServices that were looked at")
	}
}

// The writer finds a large caBundle parsed, by who has read the object.
func TestParsedBundles(t *testing.T) {
	r, step, _ := reported(t)
	a := remoteService("b.io", "v1", "server")
	a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = false, bytes.Repeat([]byte("x"), largeBundle+1)
	put(r.changes, a)
	parsed := r.changes.bundles[string(a.Spec.CABundle)]
	check.Same(t, true, parsed != nil && step().named(a.Name).kept.ca == parsed, "it was parsed before")
}

// scripted runs a registry over a source that the test controls.
func scripted(t *testing.T) (*Registry, *changes) {
	t.Helper()
	r := newRegistry(Config{}, nil)
	must.Run(t, func(ctx context.Context) error {
		go func() { _ = r.logChanges(ctx) }()
		return r.write(ctx)
	})
	c := r.changes
	for k := range kinds {
		c.replace(k, nil)
	}
	for table := r.Table(); !table.Complete(); table = r.Table() {
		<-table.Superseded()
	}
	return r, c
}

func TestStormIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c := scripted(t)
		for i := range 10_000 {
			a := remoteService(fmt.Sprintf("g%d.example.com", i%100), "v1", "server")
			a.Spec.VersionPriority = int32(i)
			put(c, a)
		}
		time.Sleep(mostPause) // virtual time: the table must exist by then
		synctest.Wait()
		table := r.Table()
		must.Be(t, len(table.Entries()) == 100, "the table after the changes has %d entries", len(table.Entries()))
		check.Same(t, 9907, table.named("v1.g7.example.com").Object.Spec.VersionPriority, "a priority")
		check.Same(t, true, table.Generation() <= 20, "%d tables for one burst of changes", table.Generation())
	})
}

func TestSupersededComesAfterTheTable(t *testing.T) {
	r, c := scripted(t)
	for i := range 50 {
		old := r.Table()
		a := remoteService("metrics.k8s.io", fmt.Sprintf("v%d", i+1), "server")
		put(c, a)
		<-old.Superseded()
		now := r.Table()
		must.Be(t, now != old && now.Generation() > old.Generation(), "woken by generation %d, found %d", old.Generation(), now.Generation())
	}
}

// The log says which problem an object in etcd has, and once that those of a file or object have
// ended. It says when an availability changes, but not for Local APIServices.
func TestLogOfProblems(t *testing.T) {
	var logged strings.Builder
	r := &Registry{log: slog.New(slog.NewTextHandler(&logged, nil))}
	all := []directory.Fault{
		{File: "a.yaml", Line: 1}, {File: "a.yaml", Line: 2}, {File: "b.yaml", Line: 7, Field: "kind"}, {File: inEtcd + "v1.c.io", Message: "no JSON"},
	}
	r.compare(&Table{problems: all[:2]}, &Table{problems: all}, nil)
	r.compare(&Table{problems: all}, &Table{problems: all[2:3]}, nil)
	entry := func(reason string) *Entry { return &Entry{Name: "v1.d.io", Verdict: Verdict{Reason: reason}} }
	r.compare(&Table{}, &Table{}, []latest.Change[*Entry]{
		{New: entry(ReasonLocal)}, {New: entry(ReasonPassed)}, {Old: entry(ReasonPassed), New: entry(ReasonPassed)}, {Old: entry(ReasonPassed)},
	})
	var got []string
	for line := range strings.Lines(logged.String()) {
		_, text, _ := strings.Cut(line, " msg=")
		got = append(got, strings.TrimSpace(text))
	}
	check.Same(t, []string{
		`"problem with manifest: of what is invalid, the last valid state is kept" file=b.yaml line=7 field=kind problem=""`,
		`"problem with APIService in etcd" apiservice=v1.c.io problem="no JSON"`,
		`"manifest has no problem any more" file=a.yaml`, `"APIService in etcd has no problem any more" apiservice=v1.c.io`,
		`"availability changed" apiservice=v1.d.io status="" reason=Passed message=""`,
	}, got, "log")
}
