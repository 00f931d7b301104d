package discovery

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// opened opens a stage with two local group-versions, and waits until it is ready.
func opened(t *testing.T, s *stage) {
	t.Helper()
	s.Claim("apps/v1", "", 17800, 15)
	s.Set(scene.Home, serving(listOf("apps/v1="+strings.Repeat("deployments,", 200))))
	s.make(Config{})
	check.Same(t, true, s.d.Ready() != nil && s.d.Rendered("/apis", "", nil) == nil, "ready before anything was read")
	must.Run(s, s.d.Run)
	s.Pass(time.Second)
	must.Do(t, s.d.Ready())
}

// A request causes no other, and an unchanged document is not rendered again, nor for each request.
func TestRenderedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		before := testutil.ToFloat64(s.d.aggregations)
		docs := s.d.view.Load()
		s.Questions(scene.Home)
		for range 100 {
			s.Get("/apis", http.Header{"Accept": {aggregatedJSON}})
			s.Get("/api", nil)
		}
		check.Same(t, nil, s.Questions(scene.Home), "questions to the local apiserver for 100 requests")
		s.d.Touch()
		s.Pass(time.Second)
		check.Same(t, true, s.d.view.Load() != docs && s.d.view.Load().groups == docs.groups && testutil.ToFloat64(s.d.aggregations) == before, "an unchanged document was rendered again")
		several := func() *document { return must.Get(s.d.below(s.d.view.Load(), "/apis/a.example.com/v1"))(t) }
		s.Set("own", serving(listOf("a.example.com/v1=owns")))
		s.Set("one", serving(listOf("a.example.com/v1=ones")))
		s.Claim("a.example.com/v1", "own", 1000, 10)
		s.Route("v1.a.example.com", "one")
		s.Pass(3 * time.Second)
		of := several()
		s.d.Touch()
		s.Pass(time.Second)
		check.Same(t, true, several() == of, "the document of several servers is the same")
		s.Set("one", serving(listOf("a.example.com/v1=others")))
		s.Pass(2 * time.Minute)
		check.Same(t, false, several() == of, "it is while a server's is another")
	})
}

// Rendered returns what ServeHTTP would answer, once the form has been requested.
func TestRenderedIsServed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		opened(t, s)
		tag := s.Get("/apis", http.Header{"Accept": {aggregatedJSON}}).Header().Get("Etag")
		for _, path := range []string{"/apis", "/api"} {
			for _, accept := range []string{"", aggregatedJSON, aggregatedJSON + ",application/json", aggregatedProto, "application/yaml", "*/*", "text/html"} {
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
					want := s.Get(path, h)
					check.Same(t, true, want.Header().Get("Cache-Control") != "", "%s %v: it says who may keep it", path, h)
					a := s.d.Rendered(path, "", fields)
					if a == nil {
						check.Same(t, true, want.Code >= 400, "%s %v: rendered, as requested before", path, h)
						continue
					}
					got := httptest.NewRecorder()
					a.Write(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
					check.Same(t, want.Header(), got.Header(), "%s %v: fields", path, h)
					check.Same(t, true, got.Code == want.Code && got.Body.String() == want.Body.String(), "%s %v: %d instead of %d", path, h, got.Code, want.Code)
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
		s.Get("/apis", header)
		for name, a := range map[string]*negotiate.Answer{
			"an unknown form":   s.d.Rendered("/apis", "", []hpack.HeaderField{{Name: "accept", Value: "application/cbor"}}),
			"two Accept fields": s.d.Rendered("/apis", "", []hpack.HeaderField{accept, accept}),
			"indented":          s.d.Rendered("/apis", "pretty=1", nil),
			"a group":           s.d.Rendered("/apis/apps", "", []hpack.HeaderField{accept}),
		} {
			check.Same(t, true, a == nil, "%s: not answered", name)
		}
		fields := []hpack.HeaderField{accept, {Name: "accept-encoding", Value: "gzip"}}
		check.Same(t, 0, testing.AllocsPerRun(100, func() { s.d.Rendered("/apis", "timeout=32s", fields) }), "allocations of looking for an answer")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis", nil)
		r.Header = header
		w := &recorder{header: http.Header{}}
		n := testing.AllocsPerRun(100, func() { clear(w.header); w.body.Reset(); s.d.ServeHTTP(w, r) })
		check.Same(t, true, n <= 5, "a request allocates %v times, at most 5", n)
		// Many different Accept fields of one client do not keep those of others from the rendered documents for ever.
		for i := range 2 * maxAccepts {
			s.Get("/apis", http.Header{"Accept": {fmt.Sprintf("application/json;n=%d", i)}})
		}
		s.Get("/apis", header)
		check.Same(t, true, s.d.Rendered("/apis", "", fields) != nil, "rendered, as requested before")
	})
}
