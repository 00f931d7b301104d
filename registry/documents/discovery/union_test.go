package discovery

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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

// A server of the custom-metrics library lists nothing in /apis. Where several servers have its
// group-version, its own document counts, whatever it was before.
func TestSilentServer(t *testing.T) {
	gv := schema.GroupVersion{Group: "a.example.com", Version: "v1"}
	s, known := newStage(t), &state{}
	s.Claim(gv.String(), "own", 1000, 10)
	s.make(Config{})
	empty, own := must.Get(json.Marshal(listOf()))(t), `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"a.example.com/v1","resources":[{"name":"as","kind":"A","verbs":["get"]}]}`
	s.Set("own", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/apis/"+gv.String():
			saying(http.StatusOK, "application/json", []byte(own))(w, r)
		case r.Header.Get("If-None-Match") == `"tag"`:
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("Etag", `"tag"`)
			saying(http.StatusOK, aggregatedJSON, empty)(w, r)
		}
	})
	for i, want := range []int{0, 0, 1, 1, 0} {
		switch i {
		case 2:
			s.Route("v1."+gv.Group, "other")
		case 4:
			s.Route("v1." + gv.Group)
		}
		next, _, err := s.d.ask(t.Context(), known, []*registry.Entry{s.Table().Entry(gv)})
		must.Do(t, err)
		check.Same(t, want, len(next.versions[gv].doc.Resources), "turn %d: resources", i)
		known = next
	}
}

// A conflict is logged when it appears, changes and ends.
func TestConflictsAreLoggedOnce(t *testing.T) {
	s, log := newStage(t), strings.Builder{}
	s.make(Config{})
	s.d.log = slog.New(slog.NewTextHandler(&log, nil))
	for _, conflicts := range [][]string{nil, {"as"}, {"as"}, {"as", "bs"}, nil, nil} {
		s.d.tell([]part{{from: []served{{name: "v1.a/one"}, {name: "v1.a", conflicts: conflicts}}}})
	}
	check.Same(t, 3, strings.Count(log.String(), "apiservice=v1.a "), "lines in the log %s", log.String())
}
