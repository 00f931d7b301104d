package discovery

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// thousand is a stage with a thousand CRDs, merged once.
func thousand(tb testing.TB) *stage {
	tb.Helper()
	s := newStage(tb)
	var words []string
	for i := range 1000 {
		group := fmt.Sprintf("group%d.example.com", i)
		s.Input.APIServices["v1."+group] = crdService(group, "v1")
		words = append(words, group+"/v1=things")
	}
	s.Build()
	s.make(Config{})
	st := &localState{groups: versions(words)}
	for _, v := range st.groups {
		*v = customResource()
	}
	s.d.local.Store(st)
	s.merge()
	return s
}

// customResource is kube-apiserver's entry of a CRD with a status.
func customResource() apidiscoveryv2.APIVersionDiscovery {
	kind := &metav1.GroupVersionKind{Group: "some.example.com", Version: "v1", Kind: "Thing"}
	return apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: []apidiscoveryv2.APIResourceDiscovery{{
		Resource: "things", ResponseKind: kind, Scope: apidiscoveryv2.ScopeNamespace, SingularResource: "thing", ShortNames: []string{"th"}, Categories: []string{"all"},
		Verbs:        []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
		Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", ResponseKind: kind, Verbs: []string{"get", "patch", "update"}}},
	}}}
}

// merge renders the stage's documents again.
func (s *stage) merge() {
	st := s.d.local.Load()
	m := &merge{table: s.Table(), local: st.groups, now: time.Now()}
	s.d.view.Store(s.d.render(m, st, s.d.view.Load()))
}

// BenchmarkMemory measures the documents of a thousand CRDs, in all forms that clients request.
func BenchmarkMemory(b *testing.B) {
	s := thousand(b)
	taken := 0.0
	for b.Loop() {
		s.d.view.Store(nil)
		before := scene.Heap()
		s.merge()
		docs := s.d.view.Load()
		for _, c := range []choice{{media: 0}, {media: 2}} {
			for _, d := range []*document{docs.groups, docs.legacy} {
				d.form(c).compressed(true)
			}
		}
		taken = scene.Heap() - before
	}
	b.ReportMetric(taken/(1<<20), "MB")
}

// BenchmarkGet measures GET /apis from the rendered document: no other server is asked, and it
// makes at most five allocations.
func BenchmarkGet(b *testing.B) {
	s := thousand(b)
	for name, header := range map[string]http.Header{
		"plain": {"Accept": {aggregatedJSON}}, "gzip": {"Accept": {aggregatedJSON}, "Accept-Encoding": {"gzip"}},
		"unchanged": {"Accept": {aggregatedJSON}, "If-None-Match": {s.d.view.Load().groups.tag().etag}},
	} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/apis", nil)
			r.Header = header
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				s.d.ServeHTTP(w, r)
			}
		})
	}
}

// Every test run checks the bound of BenchmarkGet.
func TestGetAllocates(t *testing.T) {
	s := thousand(t)
	fields := []hpack.HeaderField{{Name: "accept", Value: aggregatedJSON}, {Name: "accept-encoding", Value: "gzip"}}
	s.get("/apis", http.Header{"Accept": {aggregatedJSON}, "Accept-Encoding": {"gzip"}})
	if n := testing.AllocsPerRun(100, func() { s.d.Rendered("/apis", "timeout=32s", fields) }); n > 0 {
		t.Errorf("looking for a rendered answer allocates %v times", n)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis", nil)
	r.Header = http.Header{"Accept": {aggregatedJSON}, "Accept-Encoding": {"gzip"}}
	w := &discard{header: http.Header{}}
	if n := testing.AllocsPerRun(100, func() { clear(w.header); s.d.ServeHTTP(w, r) }); n > 5 {
		t.Errorf("a request allocates %v times, at most 5", n)
	}
}

// BenchmarkRebuild merges and renders a thousand group-versions after one has changed, and reports
// the documents' size.
func BenchmarkRebuild(b *testing.B) {
	s := thousand(b)
	m := &merge{table: s.Table(), local: s.d.local.Load().groups, now: time.Now()}
	bytes := 0
	b.ReportAllocs()
	for b.Loop() {
		docs := s.d.render(m, s.d.local.Load(), nil)
		f := docs.groups.form(choice{})
		bytes = len(f.plain()) + len(f.compressed(true)) + len(docs.legacy.form(choice{}).plain())
	}
	b.ReportMetric(float64(bytes), "document-bytes")
}

// discard is a client that ignores the answer.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
