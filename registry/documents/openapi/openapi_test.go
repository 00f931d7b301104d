package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

func keys(o any) []string {
	m, _ := o.(object)
	return slices.Sorted(maps.Keys(m))
}

// A bad spec is left out, or the last good one stays; the parts of others do not change.
func TestBadSpecs(t *testing.T) {
	good := define("bad.example.com/v1", "good")
	gvks := func(v any) kind { k := good; k.gvks = v; return k }
	spec2 := func(body string) http.HandlerFunc {
		return only("/openapi/v2", saying(http.StatusOK, body), saying(http.StatusOK, "no index"))
	}
	badDocument := func(body string) http.HandlerFunc {
		return only("/openapi/v2", serving(good), only("/openapi/v3", saying(http.StatusOK, `{"paths":{"apis/bad.example.com/v1":{},"apis/never.example.com/v1":{}}}`), saying(http.StatusOK, body)))
	}
	tests := map[string]http.HandlerFunc{
		"hangs":             hanging,
		"garbage":           saying(http.StatusOK, "garbage"),
		"empty":             saying(http.StatusOK, ""),
		"a list":            saying(http.StatusOK, "[]"),
		"wrong types":       saying(http.StatusOK, `{"paths":[1],"definitions":"x","openapi":3}`),
		"deep":              saying(http.StatusOK, strings.Repeat(`{"a":`, 200_000)+"1"+strings.Repeat("}", 200_000)),
		"huge":              saying(http.StatusOK, strings.Repeat(" ", maxSpec+1)),
		"all objects":       spec2(`{"definitions":{"d":{"allOf":[` + strings.TrimSuffix(strings.Repeat("{},", maxObjects), ",") + `]}}}`),
		"all numbers":       spec2(`{"definitions":{"d":{"enum":[0` + strings.Repeat(",0", maxValues+1) + `]}}}`),
		"500":               saying(http.StatusInternalServerError, ""),
		"redirect":          saying(http.StatusFound, ""),
		"kinds are no list": only("/openapi/v2", serving(gvks("x")), saying(http.StatusOK, "x")),
		"kinds are numbers": only("/openapi/v2", serving(gvks([]any{1})), saying(http.StatusOK, "x")),
		"index: 500":        only("/openapi/v3", saying(http.StatusInternalServerError, ""), serving(good)),
		"all values":        badDocument(`{"openapi":"3.0.0","x-a":[0` + strings.Repeat(",0", maxValues+1) + `]}`),
		"long version":      badDocument(`{"openapi":"` + strings.Repeat("2", 1<<20) + `"}`),
		"huge document":     badDocument(`{"openapi":"3.0.0"}` + strings.Repeat(" ", maxDocument)),
	}
	for name, h := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *stage) {
				s.Claim("apps/v1", "", 100, 10)
				s.Claim("bad.example.com/v1", "bad", 100, 10)
				s.Claim("never.example.com/v1", "never", 200, 10) // first of the table, last by name
				s.Set(scene.Home, serving(define("apps/v1", "local")))
				s.Set("bad", serving(good))
				s.Set("never", h)
				s.host("good", define("good.example.com/v1", "good"))
				s.settle()
				documents := func() string { before, _, _ := strings.Cut(s.show(), "status "); return before }
				want := strings.NewReplacer("good.example.com/v1: good", "good.example.com/v1: better", "good.example.com.v1: good", "good.example.com.v1: better").Replace(documents())
				s.Set("bad", h)
				s.Set("good", serving(define("good.example.com/v1", "better")))
				s.Pass(time.Minute + 2*fetchTimeout)
				check.Same(t, want, documents(), "the last good documents, and another backend's new ones")
				if strings.Contains(want, "never") {
					t.Errorf("one that never was good is in %s", want)
				}
				if !slices.IsSortedFunc(s.o.Status(), func(a, b Status) int { return strings.Compare(a.Name, b.Name) }) {
					t.Errorf("status in the order %+v", s.o.Status())
				}
				for _, st := range s.o.Status() {
					if bad := !strings.HasPrefix(st.Name, "v1.good"); bad != (st.Reason != "") || len(st.Message) > 5<<10 {
						t.Errorf("status %.2000v", st)
					}
				}
			})
		})
	}
}

// Few documents are decoded at a time, and hanging backends do not block others.
func TestFewAreDecodedAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set(scene.Home, serving())
		for i := range 2 * maxHeavy {
			name := fmt.Sprintf("hung%d", i)
			s.Claim(name+".example.com/v1", name, 100, 10)
			s.Set(name, hanging)
		}
		s.host("a", define("a.example.com/v1", "well"))
		for range maxHeavy {
			s.o.heavy <- struct{}{} // as if slow documents were decoded
		}
		must.Run(s, s.o.Run)
		s.Pass(10 * time.Second)
		if st := s.o.Status()[0]; st.Reason != "pending" || st.V2 {
			t.Errorf("without a free place the status is %+v", st)
		}
		<-s.o.heavy
		synctest.Wait()
		if st := s.o.Status()[0]; st.Reason != "" || !st.V2 {
			t.Errorf("with a free place the status is %+v", st)
		}
		for range maxHeavy - 1 { // for the decoders that end with the test
			<-s.o.heavy
		}
	})
}

// A v2 document whose conversion takes too much is refused. kube-openapi's converter copies a
// schema for each media type, and a megabyte can name a hundred thousand media types: the copies
// would use up all memory. For a schema of 9,000 levels, 95 KB, it takes 18 s.
func TestNotConvertible(t *testing.T) {
	types := make([]string, 50_000)
	for i := range types {
		types[i] = fmt.Sprintf(`"a/b%d"`, i)
	}
	many := strings.Join(types, ",")
	text := strings.Repeat("x", 50_000)
	s, gv := newStage(t), schema.GroupVersion{Group: "bad.example.com", Version: "v1"}
	for name, operation := range map[string]string{
		"consumes": `{"consumes":[` + many + `],"parameters":[{"name":"body","in":"body","schema":{"description":"` + text + `"}}],"responses":{}}`,
		"levels":   `{"parameters":[{"name":"body","in":"body","schema":` + strings.Repeat(`{"properties":{"a":`, 100) + "{}" + strings.Repeat("}}", 100) + `}],"responses":{}}`,
		"objects":  `{"produces":[` + strings.Join(types[:200], ",") + `],"responses":{"200":{"description":"","schema":{"allOf":[` + strings.Repeat("{},", 2000) + `{}]}}}}`,
		"produces": `{"produces":[` + many + `],"responses":{"200":{"description":"","schema":{"description":"` + text + `"}}}}`,
	} {
		body := `{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{"/apis/bad.example.com/v1/x":{"get":` + operation + `}}}`
		s.Set("bad", only("/openapi/v2", saying(http.StatusOK, body), saying(http.StatusNotFound, "")))
		s.Claim("bad.example.com/v1", "bad", 100, 10)
		next, _, err := s.o.ask(t.Context(), &state{}, s.Table().Entries())
		if failed, ok := errors.AsType[*documents.Error](err); !ok || failed.Reason != documents.ReasonInvalid || next.versions[gv].v3 != nil {
			t.Errorf("%s: %.200v, with the document %v", name, err, next.versions[gv].v3)
		}
	}
}

// Documents are merged only on request, concurrent requests get the same result, and no request asks a server.
func TestMergedWhenAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set(scene.Home, serving(define("apps/v1", "local")))
		s.host("a", define("a.example.com/v1", "one"))
		s.settle()
		sizes := func() (names string) {
			s.o.showSizes(func(document string, _ int) { names += document + " " })
			return names
		}
		if s.o.built.Load() != nil || sizes() != "v3_index " {
			t.Errorf("merged before the first request: sizes of %s", sizes())
		}
		s.Questions(scene.Home)
		s.Questions("a")
		var asking sync.WaitGroup
		for range 20 {
			asking.Go(func() { s.Get("/openapi/v2", nil) })
		}
		asking.Wait()
		first := s.o.built.Load()
		check.Same(t, "v2 v3_index ", sizes(), "sizes")
		s.Get("/openapi/v2", nil)
		if s.o.built.Load() != first {
			t.Error("merged again without a change")
		}
		if got := append(s.Questions(scene.Home), s.Questions("a")...); len(got) > 0 {
			t.Errorf("requests reached servers: %v", got)
		}
		s.Pass(10 * time.Minute)
		s.Get("/openapi/v2", nil)
		if s.o.built.Load() != first {
			t.Error("polls without a change caused a merge")
		}
		s.Set("a", serving(define("a.example.com/v1", "two")))
		s.Pass(time.Minute)
		if got := s.show(); !strings.Contains(got, "v2 def.a.example.com.v1: two\n") {
			t.Errorf("a change was not seen within a minute: %s", got)
		}
	})
}

func TestOfLocal(t *testing.T) {
	s := newStage(t)
	if s.o.askLocal(t.Context(), "", new(atomic.Pointer[localState])) == nil { // it is counted and logged by its error
		t.Error("an unreachable local apiserver counts as read")
	}
	s.Claim("/v1", "", 18000, 1)
	s.Claim("apps/v1", "", 100, 10)
	s.Claim("both.example.com/v1", "", 100, 10)
	s.Claim("both.example.com/v2", "a", 100, 10)
	s.Claim("a.example.com/v1", "a", 100, 10)
	for path, want := range map[string]bool{
		"api": true, "api/v1": true, "version": true, "apis": true, "apis/apps": true, "apis/apps/v1": true, "apis/none.example.com/v1": true, "none": true, "apis/none.example.com": true,
		"apis/both.example.com": true, "apis/both.example.com/v1": true, "apis/both.example.com/v2": false, "apis/a.example.com": false, "apis/a.example.com/v1": false,
	} {
		check.Same(t, want, ofLocal(s.Table(), path, false), "%s", path)
		check.Same(t, want && !strings.Contains(path, "none"), ofLocal(s.Table(), path, true), "%s, if an extension server has it", path)
	}
}

// An index that is too large to be read may claim everything that the local apiserver has.
func TestTooLargeAnIndex(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set(scene.Home, serving(define("apps/v1", "local")))
		s.host("a", define("a.example.com/v1", "a"))
		s.Set("a", only("/openapi/v3", saying(http.StatusOK, strings.Repeat(" ", maxIndex+1)), serving()))
		s.settle()
		if !s.o.Claimed("/openapi/v3/apis/apps/v1") || s.Get("/openapi/v3/apis/apps/v1", nil).Code != http.StatusOK {
			t.Error("the local apiserver is asked for what may be another's")
		}
	})
}

// A backend that has only a v2 document has it converted again only if it has changed, or after a failure.
func TestConvertedOnce(t *testing.T) {
	s := newStage(t)
	own := []schema.GroupVersion{{Group: "a.example.com", Version: "v1"}, {Group: "b.example.com", Version: "v1"}}
	q := s.o.question(nil, &state{}, own...)
	q.take(pack(must.Get(json.Marshal(specOf(define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))))(t)), "")
	must.Do(t, q.converted(t.Context()))
	if q.now[0].v3 == nil || q.now[1].v3 == nil {
		t.Errorf("documents: %+v", q.now)
	}
	known := &state{versions: map[schema.GroupVersion]version{own[0]: q.now[0], own[1]: q.now[1]}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it needs no turn
	s.o.heavy <- struct{}{}
	same := s.o.question(nil, known, own...)
	if err := same.converted(ctx); err != nil || !slices.Equal(same.now, q.now) {
		t.Errorf("unchanged: %v", err)
	}
	known.err = context.Canceled
	if err := s.o.question(nil, known, own...).converted(ctx); err == nil {
		t.Error("not converted again after a failure")
	}
}

// Shared parameters that lead to themselves, for which kube-apiserver overflows its stack, lead
// nowhere; nor are many references to a large one followed.
func TestSharedParameters(t *testing.T) {
	own := schema.GroupVersion{Group: "bad.example.com", Version: "v1"}
	for p, refused := range map[string]bool{
		`{"$ref":"#/parameters/p"}`: false, `{"$ref":"#\/\u0070arameters\/p"}`: false,
		`{"name":"p","in":"body","schema":{"properties":{"a":{"$ref":"#/parameters/p"}}}}`: false,
		`{"name":"p","in":"query","description":"` + strings.Repeat("x", 100<<10) + `"}`:   true,
	} {
		refs := strings.TrimSuffix(strings.Repeat(`{"$ref":"#/parameters/p"},`, 3000), ",")
		sw := must.Get(readForeign([]byte(`{"paths":{"/apis/bad.example.com/v1/x":{"parameters":[` + refs + `]}},"parameters":{"p":` + p + `}}`)))(t)
		sw = must.Get(filterRemote(sw, []schema.GroupVersion{own}))(t)
		text := string(must.Get(json.Marshal(sw))(t))
		if refs := strings.Count(text, "#/parameters/p"); refs > 3000 || refs > 0 && !strings.Contains(p, "name") {
			t.Errorf("%.100s: %d references", p, refs)
		}
		if _, err := toV3(sw); (err != nil) != refused {
			t.Errorf("%.100s: %v, want it refused: %v", p, err, refused)
		}
	}
}

// Run fails if this process cannot describe itself.
func TestOwnGroupMissing(t *testing.T) {
	s := newStage(t)
	for name, h := range map[string]http.HandlerFunc{"nothing": saying(http.StatusNotFound, ""), "another": serving(define("apps/v1", "x")), "garbage": saying(http.StatusOK, "]")} {
		s.Set("own", h)
		s.cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.Answer("own", r) }
		s.make()
		if err := s.o.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "reading OpenAPI of this process itself") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
