package registry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// until waits for a table that satisfies ok, as consumers do.
func until(t *testing.T, r *Registry, what string, ok func(*Table) bool) *Table {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for table := range latest.Of(ctx, r.Table, nil) {
		if ok(table) {
			return table
		}
	}
	t.Fatalf("no table with %s:\n%s", what, show(r.Table()))
	return nil
}

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

// A report that equals the table counts while the writer makes a table of an opposite one: the
// prober does not repeat it.
func TestReportDuringBuild(t *testing.T) {
	r := newRegistry(Config{}, nil)
	for k := range kinds {
		r.changes.replace(k, nil)
	}
	service := types.NamespacedName{Namespace: "extensions", Name: "server"}
	put(r.changes, remoteService("a.io", "v1", "server"), clusterIP(service), slice(service, "10.0.0.1"))
	o := newObjects()
	r.step(o)
	e := r.Table().named("v1.a.io")
	good := Report{Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: "10.0.0.1:8443", Health: Healthy}}
	bad := good
	bad.Health, bad.Reason, bad.Message = Unhealthy, ReasonFailedDiscoveryCheck, "refused"
	r.Report(good)
	r.step(o)
	r.Report(bad)
	taken := r.changes.take() // what step does first
	r.Report(good)
	if len(taken.reports) != 1 || len(r.changes.reports) != 1 {
		t.Errorf("the writer has %v, and pending are %v", taken.reports, r.changes.reports)
	}
	r.step(o)
	before := r.Table()
	r.Report(good)
	if r.step(o); r.Table() != before || !before.named(e.Name).Verdict.Available() {
		t.Errorf("after the build, a report that changes nothing made a table:\n%s", show(r.Table()))
	}
}

// What the writer looks at for each table does not grow with what the local apiserver serves, only
// with what others have, too.
func TestFaultsOfSeveralSources(t *testing.T) {
	o, served := newObjects(), make(map[types.NamespacedName]runtime.Object)
	for i := range 1000 {
		a := remoteService(fmt.Sprintf("g%d.io", i), "v1", "server")
		asLocal(a)
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

// A late report about a former Backend does not replace that about its successor, which the prober does not repeat.
func TestReportOfAFormerBackend(t *testing.T) {
	r := newRegistry(Config{}, nil)
	for k := range kinds {
		r.changes.replace(k, nil)
	}
	service := types.NamespacedName{Namespace: "extensions", Name: "server"}
	put(r.changes, remoteService("a.io", "v1", "server"), clusterIP(service), slice(service, "10.0.0.1"))
	o := newObjects()
	r.step(o)
	former := r.Table().named("v1.a.io").Backend
	moved := remoteService("a.io", "v1", "server")
	moved.Annotations = map[string]string{prefix + "http1": "true"}
	put(r.changes, moved)
	r.step(o)
	e := r.Table().named("v1.a.io")
	if e.Backend == former {
		t.Fatal("the Backend stays")
	}
	r.Report(Report{Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: "10.0.0.1:8443", Health: Healthy}})
	r.Report(Report{Name: e.Name, Backend: former, Endpoint: Endpoint{Address: "10.0.0.1:8443", Health: Unhealthy}})
	r.step(o)
	check.Same(t, Healthy, r.Table().named("v1.a.io").Endpoints[0].Health, "health")
}

// scripted runs a registry over a source that the test controls.
func scripted(t *testing.T, to prometheus.Registerer) (*Registry, *changes) {
	t.Helper()
	r := newRegistry(Config{Metrics: to}, nil)
	must.Run(t, func(ctx context.Context) error {
		go func() { _ = r.logChanges(ctx) }()
		return r.write(ctx)
	})
	c := r.changes
	for k := range kinds {
		c.replace(k, nil)
	}
	until(t, r, "nothing", (*Table).Complete)
	return r, c
}

func TestStormIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c := scripted(t, nil)
		for i := range 10_000 {
			a := remoteService(fmt.Sprintf("g%d.example.com", i%100), "v1", "server")
			a.Spec.VersionPriority = int32(i)
			put(c, a)
		}
		time.Sleep(mostPause) // virtual time: the table must exist by then
		synctest.Wait()
		table := r.Table()
		if len(table.Entries()) != 100 || table.named("v1.g7.example.com").Object.Spec.VersionPriority != 9907 {
			t.Errorf("table after the changes has %d entries", len(table.Entries()))
		}
		if g := table.Generation(); g > 20 {
			t.Errorf("%d tables for one burst of changes", g)
		}
	})
}

func TestSupersededComesAfterTheTable(t *testing.T) {
	r, c := scripted(t, nil)
	for i := range 50 {
		old := r.Table()
		a := remoteService("metrics.k8s.io", fmt.Sprintf("v%d", i+1), "server")
		put(c, a)
		<-old.Superseded()
		if now := r.Table(); now == old || now.Generation() <= old.Generation() {
			t.Fatalf("woken by generation %d, found %d", old.Generation(), now.Generation())
		}
	}
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c := scripted(t, nil)
		service := types.NamespacedName{Namespace: "extensions", Name: "server"}
		put(c, remoteService("a.io", "v1", "server"), clusterIP(service), slice(service, "10.0.0.1", "10.0.0.2"))
		settle := func() *Table {
			time.Sleep(time.Second) // virtual time
			synctest.Wait()
			return r.Table()
		}
		e := settle().named("v1.a.io")
		good := Report{Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: "10.0.0.1:8443", Health: Healthy}}
		for what, bad := range map[string]Report{
			"another name":    {Name: "v1.b.io", Backend: e.Backend, Endpoint: Endpoint{Address: good.Address, Health: Healthy}},
			"another backend": {Name: e.Name, Backend: &Backend{}, Endpoint: Endpoint{Address: good.Address, Health: Healthy}},
			"another address": {Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: "10.0.0.9:8443", Health: Healthy}},
		} {
			before := r.Table()
			r.Report(bad)
			if settle() != before {
				t.Errorf("report about %s made a table", what)
			}
		}
		r.Report(good)
		table := settle()
		if v := table.named(e.Name).Verdict; !v.Available() || v.Since.IsZero() {
			t.Errorf("verdict %+v", v)
		}
		r.Report(good)
		if settle() != table {
			t.Error("the same report again made a table")
		}
		bad := good
		for _, reason := range []string{ReasonFailedDiscoveryCheck, ReasonInvalidCABundle} {
			bad.Health, bad.Message, bad.Reason = Unhealthy, "refused", reason
			r.Report(bad)
			if at := settle().named(e.Name).Endpoints[0]; at.Address != bad.Address || at.Reason != reason {
				t.Errorf("the endpoint is %+v, and the reason was %s", at, reason)
			}
		}
		r.Report(good)
		table = settle()
		// Of two verdicts in one batch the later one counts, even if it equals the table's.
		r.Report(bad)
		r.Report(good)
		if settle() != table {
			t.Errorf("two reports that cancel each other made a table:\n%s", show(r.Table()))
		}
	})
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r, c := scripted(t, reg)
	service := types.NamespacedName{Namespace: "extensions", Name: "server"}
	local := remoteService("b.io", "v1", "")
	local.Spec.Service = nil
	remote := remoteService("a.io", "v1", "server")
	remote.Annotations = map[string]string{prefix + "owner": "team-a", prefix + "http1": "perhaps"}
	// A file's name that is not UTF-8 does not cost the scrape.
	all := make([]directory.Object, 4)
	all[0].Value, all[1].Value, all[2].Value, all[3].Value = local, remote, clusterIP(service), slice(service, "10.0.0.1")
	c.replaceAll(kindAPIService, all, []directory.Fault{{File: "gr\xf6\xdfe.yaml"}})
	table := until(t, r, "an endpoint", func(t *Table) bool { e := t.named("v1.a.io"); return e != nil && len(e.Endpoints) == 1 })
	e := table.named("v1.a.io")
	value := func(reason string) float64 {
		t.Helper()
		for _, f := range must.Get(reg.Gather())(t) {
			for _, m := range f.GetMetric() {
				if f.GetName() == "aggregator_unavailable_apiservice_total" && m.GetLabel()[1].GetValue() == reason {
					return m.GetCounter().GetValue()
				}
			}
		}
		return -1
	}
	for _, reason := range unavailableReasons {
		check.Same(t, 0, value(reason), "series of %s at the start", reason)
	}
	report := Report{Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: "10.0.0.1:8443", Health: Healthy}}
	for range 2 {
		report.Health = Healthy
		r.Report(report)
		until(t, r, "True", func(t *Table) bool { return t.named(e.Name).Verdict.Available() })
		report.Health, report.Message = Unhealthy, "refused"
		r.Report(report)
		until(t, r, "False", func(t *Table) bool { return !t.named(e.Name).Verdict.Available() })
	}
	// A change from one unavailable reason to another is not a new outage.
	c.set(keyOf(clusterIP(service)), nil)
	until(t, r, "no service", func(t *Table) bool { return t.named(e.Name).Verdict.Reason == ReasonServiceNotFound })
	if got := []float64{value(ReasonFailedDiscoveryCheck), value(ReasonServiceNotFound)}; !cmp.Equal(got, []float64{2, 0}) {
		t.Errorf("counters are %v", got)
	}
	must.Do(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP aggregator_unavailable_apiservice Gauge of APIServices which are marked as unavailable broken down by APIService name.
# TYPE aggregator_unavailable_apiservice gauge
aggregator_unavailable_apiservice{name="v1.a.io"} 1
aggregator_unavailable_apiservice{name="v1.b.io"} 0
# HELP fairlead_apiservice_info 1 for each APIService of an extension server, with its group-version and its owner (annotation fairlead.dev/owner).
# TYPE fairlead_apiservice_info gauge
fairlead_apiservice_info{group="a.io",name="v1.a.io",owner="team-a",version="v1"} 1
# HELP fairlead_registry_entries APIServices in the table by kind: local, remote, or refused because a remote claims a protected group.
# TYPE fairlead_registry_entries gauge
fairlead_registry_entries{kind="local"} 1
fairlead_registry_entries{kind="refused"} 0
fairlead_registry_entries{kind="remote"} 1
# HELP fairlead_registry_file_problems Faults of each invalid file of the directory, whose last valid objects are used, and of each invalid APIService in etcd.
# TYPE fairlead_registry_file_problems gauge
fairlead_registry_file_problems{file="gr�e.yaml"} 1
# HELP fairlead_registry_problems Faults of APIServices and of their source that are worked around and should be fixed.
# TYPE fairlead_registry_problems gauge
fairlead_registry_problems 2
`), "aggregator_unavailable_apiservice", "fairlead_apiservice_info",
		"fairlead_registry_entries", "fairlead_registry_file_problems", "fairlead_registry_problems"))
	c.set(keyOf(remote), nil)
	until(t, r, "one entry", func(t *Table) bool { return len(t.Entries()) == 1 })
	check.Same(t, -1, value(ReasonFailedDiscoveryCheck), "series after its object is gone")
	defer func() {
		if recover() == nil {
			t.Error("registered twice without a panic")
		}
	}()
	newMetrics(r.Table, reg)
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
