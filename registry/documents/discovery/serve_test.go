package discovery

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// opened opens a stage with two local group-versions, and waits until it is ready.
func opened(t *testing.T, s *stage) {
	t.Helper()
	s.Claim("apps/v1", "", 17800, 15)
	s.Set(scene.Home, serving(listOf("apps/v1="+strings.Repeat("deployments,", 200))))
	s.make(Config{})
	if s.d.Ready() == nil || s.d.Rendered("/apis", "", nil) != nil {
		t.Error("ready before anything was read")
	}
	s.Start(s.d.Run)
	s.pass(time.Second)
	must.Do(t, s.d.Ready())
}

// FuzzAccept compares the choice of a form with Kubernetes'.
func TestForms(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		tests := []struct {
			path, accept string
			code         int
			contentType  string
			begins       string
		}{
			{"/apis", "", 200, "application/json", `{"kind":"APIGroupList","apiVersion":"v1",`},
			{"/apis", aggregatedJSON, 200, aggregatedJSON, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2",`},
			{"/apis", aggregatedProto, 200, aggregatedProto, "k8s\x00"},
			{"/apis/", aggregatedJSON + ",application/json", 200, "application/json", `{"kind":"APIGroupList"`},
			{"/apis/apps", "application/yaml", 200, "application/yaml", "apiVersion: v1\nkind: APIGroup"},
			{"/apis/apps/", "", 200, "application/json", `{"kind":"APIGroup","apiVersion":"v1","name":"apps"`},
			{"/apis/none", "", 404, "application/json", `{"kind":"Status"`},
			{"/api", "", 200, "application/json", `{"kind":"APIVersions","versions":["v1"]`},
			{"/api/", aggregatedJSON, 200, aggregatedJSON, `{"kind":"APIGroupDiscoveryList"`},
			{"/api", "application/*", 406, "application/json", `{"kind":"Status"`},
			{"/somewhere", "", 404, "application/json", `{"kind":"Status"`},
		}
		for _, tt := range tests {
			w := s.get(tt.path, http.Header{"Accept": {tt.accept}}) // synctest allows no subtests
			if w.Code != tt.code || w.Header().Get("Content-Type") != tt.contentType || !strings.HasPrefix(w.Body.String(), tt.begins) {
				t.Errorf("%s %q: got %d %q %.100q", tt.path, tt.accept, w.Code, w.Header().Get("Content-Type"), w.Body)
			}
		}
		for _, media := range []string{aggregatedJSON, aggregatedProto} {
			if w := s.get("/apis", http.Header{"Accept": {media}}); !strings.Contains(w.Body.String(), "deployments") {
				t.Errorf("%s: no resources", media)
			}
		}
	})
}

func TestConditionalAndCompressed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		plain := s.get("/apis", http.Header{"Accept": {aggregatedJSON}})
		tag := plain.Header().Get("Etag")
		if len(tag) != 130 || tag != strings.ToUpper(tag) || strings.Join(plain.Header().Values("Vary"), ",") != "Accept,Accept-Encoding" || plain.Header().Get("Cache-Control") != "public" {
			t.Errorf("headers %v", plain.Header())
		}
		proto := s.get("/apis", http.Header{"Accept": {aggregatedProto}})
		check.Same(t, tag, proto.Header().Get("Etag"), "protobuf's tag")
		if w := s.get("/apis", http.Header{"Accept": {aggregatedJSON}, "If-None-Match": {`"x", W/` + tag}}); w.Code != http.StatusNotModified || w.Body.Len() > 0 || w.Header().Get("Etag") != tag {
			t.Errorf("conditional: %d %v", w.Code, w.Header())
		}
		zipped := s.get("/apis", http.Header{"Accept": {aggregatedJSON}, "Accept-Encoding": {"gzip"}})
		z := must.Get(gzip.NewReader(zipped.Body))(t)
		if body, err := io.ReadAll(z); err != nil || string(body) != plain.Body.String() || zipped.Header().Get("Content-Encoding") != "gzip" || strings.Join(zipped.Header().Values("Vary"), ",") != "Accept,Accept-Encoding" {
			t.Errorf("compressed: %v %v", err, zipped.Header())
		}
		// One strong tag must not identify two encodings (RFC 9110 §8.8.3).
		check.Same(t, "W/"+tag, zipped.Header().Get("Etag"), "tag when compressed")
		for _, sent := range []string{tag, "W/" + tag} {
			for encoding, want := range map[string]string{"identity": tag, "gzip": "W/" + tag} {
				w := s.get("/apis", http.Header{"Accept": {aggregatedJSON}, "If-None-Match": {sent}, "Accept-Encoding": {encoding}})
				if w.Code != http.StatusNotModified || w.Header().Get("Etag") != want {
					t.Errorf("%s requested with %.5s…: %d with tag %.5s…", encoding, sent, w.Code, w.Header().Get("Etag"))
				}
			}
		}
		if w := s.get("/apis/apps", http.Header{"Accept-Encoding": {"gzip"}}); w.Header().Get("Content-Encoding") != "" {
			t.Error("a few bytes are compressed")
		}
	})
}

// A request causes no other, and an unchanged document is not rendered again.
func TestRenderedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		before := testutil.ToFloat64(s.d.aggregations)
		docs := s.d.view.Load()
		s.Questions(scene.Home)
		for range 100 {
			s.get("/apis", http.Header{"Accept": {aggregatedJSON}})
			s.get("/api", nil)
		}
		if n := len(s.Questions(scene.Home)); n > 0 {
			t.Errorf("100 requests asked the local apiserver %d times", n)
		}
		group := s.d.groupDocument(docs, "apps")
		s.Claim("apps/v1", "", 17801, 15)
		if s.d.groupDocument(docs, "apps") != group {
			t.Error("a change of priority rendered a group again")
		}
		s.d.sources.Touch()
		s.pass(time.Second)
		if s.d.view.Load() == docs || s.d.view.Load().groups != docs.groups || testutil.ToFloat64(s.d.aggregations) != before {
			t.Error("an unchanged document was rendered again")
		}
	})
}

// An unreadable document of the local apiserver is counted as an error.
func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Claim("apps/v1", "", 17800, 15)
		s.Claim("a.example.com/v1", "well", 100, 10)
		s.Claim("b.example.com/v1", "dead", 100, 10)
		s.Set(scene.Home, serving(listOf("apps/v1=deployments")))
		s.Set("well", serving(listOf("a.example.com/v1=as")))
		s.open(Config{})
		s.pass(100 * time.Millisecond)
		want := `
# HELP fairlead_discovery_age_seconds Time since a remote APIService's backend last confirmed its part of discovery. Absent if it never did.
# TYPE fairlead_discovery_age_seconds gauge
fairlead_discovery_age_seconds{name="v1.a.example.com"} 0.1
# HELP fairlead_discovery_failing 1 while a remote APIService's part of discovery is not confirmed by its backend, by reason.
# TYPE fairlead_discovery_failing gauge
fairlead_discovery_failing{name="v1.b.example.com",reason="unreachable"} 1
`
		must.Do(t, testutil.GatherAndCompare(s.metrics, strings.NewReader(want), "fairlead_discovery_age_seconds", "fairlead_discovery_failing"))
		if all := s.d.Status(); len(all) != 2 || all[0].Resources != 1 || all[1].Resources != 0 {
			t.Errorf("status %+v", all)
		}
		polls := func() map[string]float64 {
			out := map[string]float64{}
			for _, f := range must.Get(s.metrics.Gather())(t) {
				for _, m := range f.GetMetric() {
					if f.GetName() == "fairlead_discovery_polls_total" {
						out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
			return out
		}
		s.Set("well", nil)
		for _, h := range []http.HandlerFunc{behaviour([]string{"garbage"}), saying(http.StatusOK, "application/json", []byte(`{}`))} {
			before := polls()
			s.Set(scene.Home, h)
			s.pass(2 * localSlow)
			if now := polls(); now["ok"] != before["ok"] || now["invalid"] <= before["invalid"] {
				t.Errorf("polls %v, before %v", now, before)
			}
		}
	})
}

// Changes of the order of versions and of the core group's place are served.
func TestChangesAreServed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		home := serving(listOf("apps/v1=deployments"))
		var address atomic.Pointer[string]
		address.Store(new(""))
		s.Set(scene.Home, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api" && r.Header.Get("Accept") == "application/json" {
				_, _ = w.Write([]byte(`{"versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"` + *address.Load() + `"}]}`))
				return
			}
			home(w, r)
		})
		s.Claim("a.example.com/v2", "a", 100, 20)
		s.Set("a", serving(listOf("a.example.com/v1=as", "a.example.com/v2=as")))
		s.open(Config{})
		for _, tt := range []struct {
			address   string
			priority  int32
			preferred string
		}{{"10.0.0.1:6443", 10, "v2"}, {"10.0.0.2:6443", 30, "v1"}} {
			address.Store(&tt.address)
			s.Claim("a.example.com/v1", "a", 100, tt.priority)
			s.pass(2 * localSlow)
			if got := s.get("/api", nil).Body.String(); !strings.Contains(got, tt.address) {
				t.Errorf("the core group is %s", got)
			}
			for _, path := range []string{"/apis", "/apis/a.example.com"} {
				if got := s.get(path, nil).Body.String(); !strings.Contains(got, `"preferredVersion":{"groupVersion":"a.example.com/`+tt.preferred) {
					t.Errorf("%s does not prefer %s: %s", path, tt.preferred, got)
				}
			}
		}
		s.Claim("a.example.com/v1", "a", 100, 10)
		if got := s.get("/apis/a.example.com", nil).Body.String(); !strings.Contains(got, `"preferredVersion":{"groupVersion":"a.example.com/v2`) {
			t.Errorf("a group does not follow the table at once: %s", got)
		}
	})
}

// Rendered returns what ServeHTTP would answer, once the form has been requested.
func TestRenderedIsServed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		tag := s.get("/apis", http.Header{"Accept": {aggregatedJSON}}).Header().Get("Etag")
		for _, path := range []string{"/apis", "/api"} {
			for _, accept := range []string{"", aggregatedJSON, aggregatedJSON + ",application/json", aggregatedProto, "application/yaml", "*/*"} {
				for _, h := range []http.Header{
					{}, {"Accept-Encoding": {"gzip"}}, {"Accept-Encoding": {"gzip;q=0"}}, {"If-None-Match": {tag}}, {"If-None-Match": {`"other"`}}, {"User-Agent": {"curl/8"}},
				} {
					if h.Set("Accept", accept); accept == "" {
						h.Del("Accept")
					}
					var fields []hpack.HeaderField
					for name, values := range h {
						fields = append(fields, hpack.HeaderField{Name: strings.ToLower(name), Value: values[0]})
					}
					s.d.Rendered(path, "", fields)
					want := s.get(path, h)
					a := s.d.Rendered(path, "", fields)
					if a == nil {
						if want.Code < 400 {
							t.Errorf("%s %v: not rendered, although requested before", path, h)
						}
						continue
					}
					got := httptest.NewRecorder()
					a.Write(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
					if diff := cmp.Diff(want.Header(), got.Header()); diff != "" || got.Code != want.Code || got.Body.String() != want.Body.String() {
						t.Errorf("%s %v: %d instead of %d, %s", path, h, got.Code, want.Code, diff)
					}
				}
			}
		}
	})
}

// Rendered leaves requests that need ServeHTTP unanswered, and looks without an allocation.
func TestNotRendered(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		accept := hpack.HeaderField{Name: "accept", Value: aggregatedJSON}
		header := http.Header{"Accept": {aggregatedJSON}, "Accept-Encoding": {"gzip"}}
		s.get("/apis", header)
		for name, a := range map[string]*negotiate.Answer{
			"an unknown form":   s.d.Rendered("/apis", "", []hpack.HeaderField{{Name: "accept", Value: "application/cbor"}}),
			"two Accept fields": s.d.Rendered("/apis", "", []hpack.HeaderField{accept, accept}),
			"indented":          s.d.Rendered("/apis", "pretty=1", nil),
			"a group":           s.d.Rendered("/apis/apps", "", []hpack.HeaderField{accept}),
		} {
			if a != nil {
				t.Errorf("%s: answered", name)
			}
		}
		fields := []hpack.HeaderField{accept, {Name: "accept-encoding", Value: "gzip"}}
		if n := testing.AllocsPerRun(100, func() { s.d.Rendered("/apis", "timeout=32s", fields) }); n > 0 {
			t.Errorf("looking for a rendered answer allocates %v times", n)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis", nil)
		r.Header = header
		w := &sheet{header: http.Header{}}
		if n := testing.AllocsPerRun(100, func() { clear(w.header); w.body.Reset(); s.d.ServeHTTP(w, r) }); n > 5 {
			t.Errorf("a request allocates %v times, at most 5", n)
		}
		// Many different Accept fields of one client do not keep those of others from the rendered
		// documents for ever.
		for i := range 2 * maxAccepts {
			s.get("/apis", http.Header{"Accept": {fmt.Sprintf("application/json;n=%d", i)}})
		}
		s.get("/apis", header)
		if n := len(*s.d.root.known.Load()); s.d.Rendered("/apis", "", fields) == nil || n > maxAccepts {
			t.Errorf("not rendered, although requested before, with %d Accept fields remembered", n)
		}
	})
}
