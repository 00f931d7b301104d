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

	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// running runs a registry until the test ends.
func running(t *testing.T, c Config) *Registry {
	t.Helper()
	r := must.Get(New(c))(t)
	must.Run(t, r.Run)
	return r
}

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

func TestClusterFollows(t *testing.T) {
	server := apiserver.New()
	name := types.NamespacedName{Namespace: "extensions", Name: "metrics"}
	managed := remoteService("metrics.k8s.io", "v1beta1", "metrics")
	managed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	server.Put(managed, clusterIP(name), slice(name, "10.0.0.1"))
	r := must.Get(New(Config{Client: server.Start(t), Logger: slog.New(slog.DiscardHandler)}))(t)
	if r.Table().Complete() || r.Table().Generation() != 1 {
		t.Error("a table is complete before the first read")
	}
	must.Run(t, r.Run)
	table := until(t, r, "everything", (*Table).Complete)
	e := table.named(managed.Name)
	if len(table.Entries()) != 1 || len(e.Endpoints) != 1 || e.Endpoints[0].Address != "10.0.0.1:8443" {
		t.Fatalf("first complete table:\n%s", show(table))
	}
	if e.Object.ManagedFields != nil {
		t.Error("managed fields are kept")
	}

	// A new APIService is routable at once.
	begun := time.Now()
	server.Put(remoteService("new.example.com", "v1", "metrics"))
	until(t, r, "the new APIService", func(t *Table) bool {
		return t.Match("/apis/new.example.com/v1/things").Route == RouteRemote
	})
	if took := time.Since(begun); took > time.Second {
		t.Errorf("routable after %s", took) // the goal is 0.1 s; the bound leaves room for a busy machine
	}

	r.Report(Report{Name: e.Name, Backend: e.Backend, Address: "10.0.0.1:8443", Health: Healthy})
	until(t, r, "a verdict", func(t *Table) bool { return t.named(e.Name).Verdict.Available() })

	server.Drop(apiserver.Slices, "extensions/metrics-1")
	until(t, r, "no slice", func(t *Table) bool { return t.named(e.Name).Verdict.Reason == ReasonEndpointsNotFound })
	server.Drop(apiserver.APIServices, "/v1.new.example.com")
	until(t, r, "one APIService", func(t *Table) bool { return len(t.Entries()) == 1 })
}

// What happened while the apiserver was away, or before it came, is seen afterwards.
func TestClusterSurvivesRestart(t *testing.T) {
	server := apiserver.New()
	server.Fault(true, false)
	gone := remoteService("a.io", "v1", "metrics")
	server.Put(remoteService("metrics.k8s.io", "v1beta1", "metrics"), gone)
	r := running(t, Config{Client: server.Start(t)})
	if r.Table().Complete() {
		t.Error("complete, but nothing could be read")
	}
	server.Fault(false, false)
	before := until(t, r, "everything", (*Table).Complete)
	server.Fault(true, false)
	server.Fault(false, true) // answers 404 until it is ready again
	server.Put(remoteService("while.away.com", "v1", "metrics"))
	server.Drop(apiserver.APIServices, "/"+gone.Name)
	if r.Table() != before {
		t.Errorf("table changed while the apiserver was down:\n%s", show(r.Table()))
	}
	server.Fault(false, false)
	until(t, r, "what happened meanwhile", func(t *Table) bool {
		return t.named("v1.while.away.com") != nil && t.named(gone.Name) == nil && len(t.Entries()) == 2
	})
}

func TestClusterWithoutAggregation(t *testing.T) {
	server := apiserver.New(apiserver.APIServices)
	r := must.Get(New(Config{Client: server.Start(t)}))(t)
	err := r.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "dir:") {
		t.Errorf("Run: %v, want an error that names dir:", err)
	}
}

func TestWatchConfigMap(t *testing.T) {
	server := apiserver.New()
	expect := watchTrust(t, must.Get(New(Config{Client: server.Start(t)}))(t))
	expect("none")
	server.Put(configMap("other", "wrong"), configMap("trust", "one"))
	expect("one")
	server.Put(configMap("trust", "two"))
	expect("two")
	server.Drop(apiserver.ConfigMaps, "kube-system/trust")
	expect("none")
}

func configMap(name, ca string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{"ca": ca}}
}

// watchTrust watches the ConfigMap kube-system/trust until the test ends. expect waits for the next
// different state.
func watchTrust(t *testing.T, r *Registry) (expect func(want string)) {
	t.Helper()
	seen := make(chan string, 10)
	must.Run(t, func(ctx context.Context) error {
		return r.Watch(ctx, "kube-system", "trust", func(m *corev1.ConfigMap) {
			if m == nil {
				seen <- "none"
				return
			}
			seen <- m.Data["ca"]
		})
	})
	last := ""
	return func(want string) {
		t.Helper()
		got := <-seen
		for got == last {
			got = <-seen
		}
		if last = got; got != want {
			t.Errorf("saw %q, want %q", got, want)
		}
	}
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

// object is an object of any source.
type object interface {
	metav1.Object
	runtime.Object
}

// put adds or changes objects.
func put(c *changes, all ...object) {
	for _, o := range all {
		c.set(keyOf(o), o)
	}
}

// script is a source that the test controls.
type script struct{ to chan *changes }

func (s script) run(ctx context.Context, to *changes) error {
	s.to <- to
	<-ctx.Done()
	return ctx.Err()
}

func (s script) watch(ctx context.Context, _, _ string, _ func(*corev1.ConfigMap)) error {
	<-ctx.Done()
	return ctx.Err()
}

// A report that equals the table counts while the writer makes a table of an opposite one: the
// prober does not repeat it.
func TestReportDuringBuild(t *testing.T) {
	r := must.Get(newRegistry(Config{}, script{}))(t)
	for k := range kinds {
		r.changes.replace(k, nil)
	}
	service := types.NamespacedName{Namespace: "extensions", Name: "server"}
	put(r.changes, remoteService("a.io", "v1", "server"), clusterIP(service), slice(service, "10.0.0.1"))
	o := newObjects()
	r.step(o)
	e := r.Table().named("v1.a.io")
	good := Report{Name: e.Name, Backend: e.Backend, Address: "10.0.0.1:8443", Health: Healthy}
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
	if r.changes.reported(good) || !before.named(e.Name).Verdict.Available() {
		t.Errorf("after the build, a report that changes nothing is pending:\n%s", show(before))
	}
}

// scripted runs a registry over a source that the test controls.
func scripted(t *testing.T, to prometheus.Registerer) (*Registry, *changes) {
	t.Helper()
	s := script{to: make(chan *changes, 1)}
	r := must.Get(newRegistry(Config{Metrics: to}, s))(t)
	must.Run(t, r.Run)
	c := <-s.to
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
		good := Report{Name: e.Name, Backend: e.Backend, Address: "10.0.0.1:8443", Health: Healthy}
		for what, bad := range map[string]Report{
			"another name":    {Name: "v1.b.io", Backend: e.Backend, Address: good.Address, Health: Healthy},
			"another backend": {Name: e.Name, Backend: &Backend{}, Address: good.Address, Health: Healthy},
			"another address": {Name: e.Name, Backend: e.Backend, Address: "10.0.0.9:8443", Health: Healthy},
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
	remote.Annotations = map[string]string{prefix + "owner": "team-a"}
	put(c, local, remote, clusterIP(service), slice(service, "10.0.0.1"))
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
	report := Report{Name: e.Name, Backend: e.Backend, Address: "10.0.0.1:8443", Health: Healthy}
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
`), "aggregator_unavailable_apiservice", "fairlead_apiservice_info", "fairlead_registry_entries"))
	c.set(keyOf(remote), nil)
	until(t, r, "one entry", func(t *Table) bool { return len(t.Entries()) == 1 })
	check.Same(t, -1, value(ReasonFailedDiscoveryCheck), "series after its object is gone")
	if _, err := newMetrics(r.Table, reg); err == nil {
		t.Error("registered twice without an error")
	}
}
