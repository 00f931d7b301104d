package discovery

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/builtin"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// has is a v1 with a resource that has subresources.
func has(resource string, subresources ...string) served {
	doc := resources("v1", resource)
	for _, name := range subresources {
		r := &doc.Resources[0]
		r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: name})
	}
	return served{doc: &doc}
}

// Servers of custom metrics have resources in common, and each has metrics of its own below them.
func TestUnitedSubresources(t *testing.T) {
	from := []served{has("pods", "a", "b", "c"), has("pods", "b", "d"), has("pods:Other", "e"), has("nodes", "a"), has("pods", "f")}
	var got []string
	for range 2 { // the parts stay as they are
		got = nil
		for _, r := range united(from).Resources {
			for _, sub := range r.Subresources {
				got = append(got, r.Resource+"/"+sub.Subresource)
			}
		}
	}
	check.Same(t, []string{"pods/a", "pods/b", "pods/c", "pods/d", "pods/f", "nodes/a"}, got, "subresources")
	check.Same(t, 3, len(from[0].doc.Resources[0].Subresources), "those of the first")
}

// Local apiservers are united in subresources, too, and only what no other one has than those that were down for too
// long is Stale. Without a change it stays the same document.
func TestTogether(t *testing.T) {
	gv, all := schema.GroupVersion{Group: "a.example.com", Version: "v1"}, make(versions)
	m := &merge{lost: make(map[schema.GroupVersion]bool), staleAfter: time.Minute, now: time.Now()}
	var last *apidiscoveryv2.APIVersionDiscovery
	for _, tt := range []struct {
		down, same   bool
		subresources []string
		want         string
	}{
		{down: true, subresources: []string{"status"}, want: "Stale 1"},
		{down: true, same: true, want: "Stale 1"},
		{subresources: []string{"status"}, want: "Current 1"},
		{subresources: []string{"scale"}, want: "Current 2"},
		{down: true, same: true, subresources: []string{"status", "scale"}, want: "Current 2"},
	} {
		core := &apidiscoveryv2.APIGroupDiscoveryList{}
		state := &localState{failed: tt.down, groups: versions{gv: has("things", tt.subresources...).doc}, core: core}
		all.add(state, state, m)
		now := all[gv]
		got := fmt.Sprint(now.Freshness, " ", len(now.Resources[0].Subresources))
		check.Same(t, tt.want, got, "with %v", tt.subresources)
		check.Same(t, tt.same, now == last, "the same document with %v", tt.subresources)
		last = now
	}
}

// For any servers of a group-version, with any resources, both forms list what a simple model says:
// of each name, what the first of the servers has.
func TestUnion(t *testing.T) {
	gv := schema.GroupVersion{Group: "a.example.com", Version: "v1"}
	for seed := range uint64(300) {
		rnd, s := rand.New(rand.NewPCG(seed, 3)), newStage(t)
		pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
		services := []string{"c", "a", "d", "b"}[:rnd.IntN(5)]
		s.Claim(gv.String(), "own", 1000, 10)
		s.Route("v1."+gv.Group, services...)
		s.make(Config{})
		sources, answered, some := map[*registry.Backend]*source{}, true, false
		var want []string
		seen := map[string]bool{}
		for _, service := range append(services, "own") {
			doc := resources(gv.Version)
			for range rnd.IntN(8) {
				words := pick("as", "bs", "cs", "ds", "es", "fs", "gs") + ":" + pick("Kind", "Other") + pick("", ":cluster") + ":" + pick("get", "list")
				r := resources(gv.Version, words).Resources[0]
				doc.Resources = append(doc.Resources, r)
			}
			known := &state{versions: map[schema.GroupVersion]version{gv: {doc: &doc}}}
			if rnd.IntN(6) == 0 {
				known, doc.Resources, answered = &state{}, nil, false // has not answered yet
			} else {
				some = true
			}
			for _, e := range s.Table().Servers() {
				if e.Backend.Service == service {
					sources[e.Backend] = &source{}
					sources[e.Backend].Store(known)
				}
			}
			for _, r := range doc.Resources {
				if len(services) > 0 && seen[r.Resource] {
					continue
				}
				seen[r.Resource] = true
				want = append(want, fmt.Sprint(r.Resource, r.ResponseKind.Kind, r.Scope == apidiscoveryv2.ScopeNamespace, r.Verbs))
			}
		}
		m := &merge{table: s.Table(), sources: func(b *registry.Backend) *source { return sources[b] }}
		view := s.d.render(m, &localState{}, nil)
		s.d.view.Store(view)
		check.Same(t, true, view.groups == s.d.render(m, &localState{}, view).groups, "seed %d: without a change, the document is the same", seed)

		list := &apidiscoveryv2.APIGroupDiscoveryList{}
		must.Do(t, json.Unmarshal(s.Get("/apis", http.Header{"Accept": {aggregatedJSON}}).Body.Bytes(), list))
		v, got := list.Items[0].Versions[0], []string(nil)
		for _, r := range v.Resources {
			got = append(got, fmt.Sprint(r.Resource, r.ResponseKind.Kind, r.Scope == apidiscoveryv2.ScopeNamespace, r.Verbs))
		}
		check.Same(t, want, got, "seed %d: aggregated", seed)
		check.Same(t, answered, v.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent, "seed %d: it is Current if all have answered", seed)
		if len(services) == 0 {
			continue // the server itself has the other form
		}
		w := s.Get("/apis/"+gv.String(), nil)
		check.Same(t, some, w.Code == http.StatusOK, "seed %d: status %d", seed, w.Code)
		if !some {
			continue
		}
		legacy := &metav1.APIResourceList{}
		must.Do(t, json.Unmarshal(w.Body.Bytes(), legacy))
		got = nil
		for _, r := range legacy.APIResources {
			got = append(got, fmt.Sprint(r.Name, r.Kind, r.Namespaced, r.Verbs))
		}
		check.Same(t, want, got, "seed %d: legacy", seed)
	}
}

// A conflict is logged when it appears, changes and ends.
func TestConflictsAreLoggedOnce(t *testing.T) {
	s, log := newStage(t), strings.Builder{}
	s.make(Config{})
	s.d.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for _, conflicts := range [][]string{nil, {"as"}, {"as"}, {"as", "bs"}, nil, nil} {
		s.d.tell([]part{{from: []served{{name: "v1.a/one"}, {name: "v1.a", conflicts: conflicts}}}})
	}
	check.Same(t, 3, strings.Count(log.String(), "apiservice=v1.a "), "lines in the log %s", log.String())
}

// cluster is a random set of APIServices with few names and priorities, for ties of every kind. Some are Local.
func cluster(rnd *rand.Rand) map[string]*apiregistrationv1.APIService {
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
	out := map[string]*apiregistrationv1.APIService{}
	for range 1 + rnd.IntN(40) {
		group := pick("zebra", "ape", "cat", "dog", "apps", "b.example.com", "a.example.com")
		version := pick("v1", "v2", "v10", "v1beta1", "v11beta2", "v1alpha1", "v12alpha1", "foo1", "foo10", "foo9")
		o := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: int32(1 + rnd.IntN(3)), VersionPriority: int32(1 + rnd.IntN(3)),
		}}
		if rnd.IntN(2) == 0 {
			o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "x", Name: "x"}
		}
		out[o.Name] = o
	}
	return out
}

// Both orders agree with Kubernetes' own implementations, also for ties.
func TestOrdersAreKubernetes(t *testing.T) {
	for seed := range uint64(300) {
		services := cluster(rand.New(rand.NewPCG(seed, 1)))
		table := registry.Build(registry.Input{APIServices: services, Options: &registry.Options{ProtectedGroups: []string{}}, Complete: true}, nil)

		sources := map[*registry.Backend]*source{}
		m := &merge{
			table: table, local: map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}, sources: func(b *registry.Backend) *source { return sources[b] },
		}
		theirs := aggregated.NewResourceManager("apis")
		for _, e := range table.Entries() {
			v := resources(e.GroupVersion.Version, "things")
			from := aggregated.AggregatorSource
			if e.Local() {
				m.local[e.GroupVersion], from = &v, aggregated.BuiltinSource
			} else {
				if sources[e.Backend] == nil {
					sources[e.Backend] = &source{}
					sources[e.Backend].Store(&state{versions: map[schema.GroupVersion]version{}})
				}
				sources[e.Backend].Load().versions[e.GroupVersion] = version{doc: &v}
			}
			rm := theirs.WithSource(from)
			rm.AddGroupVersion(e.GroupVersion.Group, v)
			rm.SetGroupVersionPriority(metav1.GroupVersion(e.GroupVersion), int(e.Object.Spec.GroupPriorityMinimum), int(e.Object.Spec.VersionPriority))
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis", nil)
		r.Header.Set("Accept", aggregatedJSON)
		w := httptest.NewRecorder()
		theirs.ServeHTTP(w, r)
		want := &apidiscoveryv2.APIGroupDiscoveryList{}
		must.Do(t, json.Unmarshal(w.Body.Bytes(), want))
		check.Same(t, names(partsOf(want)), names(m.parts()), "seed %d: aggregated order, like Kubernetes'", seed)

		var flat []*apiregistrationv1.APIService
		for _, o := range services {
			flat = append(flat, o)
		}
		var legacy []string
		for _, group := range helper.SortedByGroupAndVersion(flat) {
			for _, o := range group {
				legacy = append(legacy, o.Spec.Group+"/"+o.Spec.Version)
			}
		}
		var ours []string
		for _, g := range groupList(table).Groups[1:] {
			for _, v := range g.Versions {
				ours = append(ours, v.GroupVersion)
			}
		}
		check.Same(t, legacy, ours, "seed %d: legacy order, like Kubernetes'", seed)
		check.Same(t, [2]int{len(services), len(services)}, [2]int{len(legacy), len(names(m.parts()))}, "seed %d: group-versions in each document", seed)
	}
}

// Strays are ordered as if the table named them with the priorities of kube-apiserver, or a CRD's.
func TestStraysAreInOrder(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		services := cluster(rnd)
		for _, o := range services {
			o.Spec.Service = nil
			o.Spec.GroupPriorityMinimum = int32(999 + rnd.IntN(3))
			o.Spec.VersionPriority = int32(99 + rnd.IntN(3))
		}
		whole := map[string]*apiregistrationv1.APIService{}
		part := map[string]*apiregistrationv1.APIService{}
		local := map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}
		for name, o := range services {
			v := resources(o.Spec.Version, "things")
			local[schema.GroupVersion{Group: o.Spec.Group, Version: o.Spec.Version}] = &v
			if rnd.IntN(2) == 0 {
				part[name], whole[name] = o, o
				continue
			}
			o = o.DeepCopy()
			o.Spec.GroupPriorityMinimum, o.Spec.VersionPriority, _ = builtin.Priorities(schema.GroupVersion{Group: o.Spec.Group, Version: o.Spec.Version})
			whole[name] = o
		}
		list := func(services map[string]*apiregistrationv1.APIService) []string {
			m := &merge{table: registry.Build(registry.Input{APIServices: services, Complete: true}, nil), local: local}
			return names(m.parts())
		}
		check.Same(t, list(whole), list(part), "seed %d: order of all and of some", seed)
	}
}

func partsOf(l *apidiscoveryv2.APIGroupDiscoveryList) []part {
	var out []part
	for _, g := range l.Items {
		for i := range g.Versions {
			out = append(out, part{group: g.Name, doc: &g.Versions[i]})
		}
	}
	return out
}

func names(parts []part) []string {
	var out []string
	for _, p := range parts {
		out = append(out, p.group+"/"+p.doc.Version)
	}
	if s := slices.Clone(out); len(slices.Compact(slices.Sorted(slices.Values(s)))) != len(out) {
		out = append(out, "twice")
	}
	return out
}
