package registry

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// Two APIServices share a Backend if and only if everything that affects a connection is equal.
func TestInterned(t *testing.T) {
	annotated := func(name, value string) func(*apiregistrationv1.APIService) {
		return func(a *apiregistrationv1.APIService) { a.Annotations = map[string]string{prefix + name: value} }
	}
	for name, c := range map[string]struct {
		change func(*apiregistrationv1.APIService)
		shared bool
	}{
		"same":           {func(*apiregistrationv1.APIService) {}, true},
		"priority":       {func(a *apiregistrationv1.APIService) { a.Spec.GroupPriorityMinimum = 7 }, true},
		"limit":          {annotated("max-inflight", "3"), true},
		"overlap":        {annotated("ca-rotation-overlap", "9m"), true},
		"maintenance":    {annotated("maintenance", "later"), true},
		"default port":   {func(a *apiregistrationv1.APIService) { a.Spec.Service.Port = new(int32(443)) }, true},
		"default name":   {annotated("tls-server-name", "server.extensions.svc"), true},
		"port":           {func(a *apiregistrationv1.APIService) { a.Spec.Service.Port = new(int32(8443)) }, false},
		"service":        {func(a *apiregistrationv1.APIService) { a.Spec.Service.Name = "other" }, false},
		"namespace":      {func(a *apiregistrationv1.APIService) { a.Spec.Service.Namespace = "other" }, false},
		"bundle":         {func(a *apiregistrationv1.APIService) { a.Spec.CABundle = []byte("other") }, false},
		"larger bundle":  {func(a *apiregistrationv1.APIService) { a.Spec.CABundle = []byte("bundle and more") }, false},
		"system's roots": {func(a *apiregistrationv1.APIService) { a.Spec.CABundle = nil }, false},
		"insecure":       {func(a *apiregistrationv1.APIService) { a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = true, nil }, false},
		"server name":    {annotated("tls-server-name", "other.example.com"), false},
		"protocol":       {annotated("http1", "true"), false},
		"ping timeout":   {annotated("ping-timeout", "9s"), false},
		"ConfigMap": {func(a *apiregistrationv1.APIService) {
			a.Spec.CABundle, a.Annotations = nil, map[string]string{prefix + "ca-from": "bundle/ca.crt"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Options: &Options{}, Complete: true, APIServices: map[string]*apiregistrationv1.APIService{}}
			var names []string
			add := func(group string, change func(*apiregistrationv1.APIService)) {
				a := remoteService(group, "v1", "server")
				a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = false, []byte("bundle")
				change(a)
				in.APIServices[a.Name] = a
				names = append(names, a.Name)
			}
			none := func(*apiregistrationv1.APIService) {}
			add("a.example.com", none)
			add("b.example.com", c.change)
			table := Build(in, nil)
			first, second := table.named(names[0]).Backend, table.named(names[1]).Backend
			if got := first == second; got != c.shared || got != (*first == *second) {
				t.Errorf("the same Backend: %v\n%+v\n%+v", got, first, second)
			}
			add("c.example.com", none)
			add("d.example.com", c.change)
			table = Build(in, table)
			if got := table.named(names[2]).Backend; got != first {
				t.Error("a later APIService has another Backend")
			}
			if got := table.named(names[3]).Backend; (got == second) != (second.Owner == "") {
				t.Errorf("a later APIService that equals the second: %+v", got)
			}
		})
	}
}

// An APIService that becomes Local or is deleted during an overlap leaves no pending rebuild.
func TestNothingLeftToOpen(t *testing.T) {
	for name, change := range map[string]func(map[string]*apiregistrationv1.APIService, *apiregistrationv1.APIService){
		"local": func(_ map[string]*apiregistrationv1.APIService, a *apiregistrationv1.APIService) {
			a.Spec.Service = nil
		},
		"deleted": func(all map[string]*apiregistrationv1.APIService, a *apiregistrationv1.APIService) {
			delete(all, a.Name)
		},
	} {
		in := Input{Options: &Options{}, Complete: true, APIServices: map[string]*apiregistrationv1.APIService{}, Now: time.Unix(0, 0)}
		var table *Table
		for _, bundle := range []string{"old", "new"} {
			a := remoteService("a.example.com", "v1", "server")
			a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = false, []byte(bundle)
			in.APIServices[a.Name] = a
			table = Build(in, table)
		}
		if table.rebuildAt != in.Now.Add(time.Minute) {
			t.Errorf("the rebuild is at %v", table.rebuildAt)
		}
		a := remoteService("a.example.com", "v1", "server")
		in.APIServices[a.Name] = a
		change(in.APIServices, a)
		if table = Build(in, table); !table.rebuildAt.IsZero() {
			t.Errorf("%s: the rebuild is at %v", name, table.rebuildAt)
		}
	}
}

// An owner's Backend is private exactly as long as its overlap lasts, even if nothing else changes.
func TestOwnedForTheOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to := scripted(t, nil)
		put := func(group, bundle string) {
			a := remoteService(group, "v1", "server")
			a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = false, []byte(bundle)
			if group == "0.example.com" { // the first to start, and the last to end
				a.Annotations = map[string]string{prefix + "ca-rotation-overlap": "9m"}
			}
			put(to, a)
		}
		put("0.example.com", "old")
		put("a.example.com", "old")
		put("b.example.com", "new")
		time.Sleep(time.Second)
		put("0.example.com", "new")
		put("a.example.com", "new")
		begun, tables := time.Now(), 0
		var changes []time.Duration
		last := r.Table()
		for table := range latest.Of(t.Context(), r.Table, time.After(2*time.Minute)) {
			a, b := table.named("v1.a.example.com").Backend, table.named("v1.b.example.com").Backend
			if was := last.named("v1.a.example.com").Backend; a != was {
				changes = append(changes, time.Since(begun).Round(time.Second))
				if owned := len(changes) == 1; owned == (a == b) || owned != (a.Owner == "v1.a.example.com") {
					t.Errorf("after %v: %+v, its neighbour's %+v", changes, a, b)
				}
			}
			last, tables = table, tables+1
			if time.Since(begun) > 90*time.Second {
				break
			}
		}
		if want := []time.Duration{0, time.Minute}; !slices.Equal(changes, want) || tables > 5 {
			t.Errorf("another Backend after %v, want %v; %d tables", changes, want, tables)
		}
		if next := last.rebuildAt.Sub(begun).Round(time.Second); next != 9*time.Minute {
			t.Errorf("the next rebuild is after %v", next)
		}
	})
}
