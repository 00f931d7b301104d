package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
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
				check.Same(t, false, strings.Contains(want, "never"), "one that never was good is in %s", want)
				sorted := slices.IsSortedFunc(s.o.Status(), func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
				check.Same(t, true, sorted, "status in order")
				for _, st := range s.o.Status() {
					bad := !strings.HasPrefix(st.Name, "v1.good")
					check.Same(t, true, bad == (st.Reason != "") && len(st.Message) <= 5<<10, "status %.2000v", st)
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
		st := s.o.Status()[0]
		check.Same(t, true, st.Reason == "pending" && !st.V2, "without a free place the status is %+v", st)
		<-s.o.heavy
		synctest.Wait()
		st = s.o.Status()[0]
		check.Same(t, true, st.Reason == "" && st.V2, "with a free place the status is %+v", st)
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
		failed, ok := errors.AsType[*documents.Error](err)
		check.Same(t, true, ok && failed.Reason == documents.ReasonInvalid && next.versions[gv].v3 == nil, "%s: %.200v, with the document %v", name, err, next.versions[gv].v3)
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
		check.Same(t, true, s.o.built.Load() == nil && sizes() == "v3_index ", "merged before the first request: sizes of %s", sizes())
		s.Questions(scene.Home)
		s.Questions("a")
		var asking sync.WaitGroup
		for range 20 {
			asking.Go(func() { s.Get("/openapi/v2", nil) })
		}
		asking.Wait()
		first := s.o.built.Load()
		check.Same(t, "v2 v3_index ", sizes(), "sizes")
		for _, wait := range []time.Duration{0, 10 * time.Minute} { // polls change nothing
			check.Same(t, nil, append(s.Questions(scene.Home), s.Questions("a")...), "questions to servers for requests")
			s.Pass(wait)
			s.Get("/openapi/v2", nil)
			check.Same(t, true, s.o.built.Load() == first, "not merged again after %v", wait)
		}
		first.took = time.Hour // as if the process was stopped meanwhile
		s.Set("a", serving(define("a.example.com/v1", "two")))
		s.Pass(time.Minute)
		check.Same(t, true, strings.Contains(s.show(), "v2 def.a.example.com.v1: two\n"), "a change is seen within a minute: %s", s.show())
	})
}

func TestOfLocal(t *testing.T) {
	s := newStage(t)
	check.Same(t, true, s.o.askLocal(t.Context(), "", new(atomic.Pointer[localState])) != nil, "an unreachable local apiserver does not count as read") // it is counted and logged by its error
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

// Of what only some local apiservers have, remotes are not theirs, nor is what the policy hides.
func TestPartsOfLocal(t *testing.T) {
	s := newStage(t)
	s.Claim("a.example.com/v1", "a", 100, 10)
	s.Claim("b.example.com/v1", "", 100, 10)
	s.Route("v1.b.example.com", "hidden")
	gv := func(group string) schema.GroupVersion { return schema.GroupVersion{Group: group, Version: "v1"} }
	parts := []input{
		{name: "one", spec: pack(nil), own: []schema.GroupVersion{gv("a.example.com"), gv("c.example.com")}},
		{name: "two", spec: pack(nil), own: []schema.GroupVersion{gv("b.example.com")}},
	}
	var got []string
	for _, in := range s.o.collect(&view{table: s.Table(), local: &localState{}, parts: parts}).sources {
		got = append(got, fmt.Sprint(in.name, in.own))
	}
	check.Same(t, []string{"one[c.example.com/v1]"}, got, "what is taken of them")
	check.Same(t, 2, len(parts[0].own), "the parts stay as they are")
}

// An index that is too large to be read, or kept, may claim everything that the local apiserver has.
func TestTooLargeAnIndex(t *testing.T) {
	for _, index := range []string{strings.Repeat(" ", maxIndex+1), proportion.Repeat(`{"paths":{`, `"@":{},`, `}}`)(maxPaths)} {
		inBubble(t, func(t *testing.T, s *stage) {
			s.Set(scene.Home, serving(define("apps/v1", "local")))
			s.host("a", define("a.example.com/v1", "a"))
			s.Set("a", only("/openapi/v3", saying(http.StatusOK, index), serving()))
			s.settle()
			check.Same(t, true, s.o.Claimed("/openapi/v3/apis/apps/v1") && s.Get("/openapi/v3/apis/apps/v1", nil).Code == http.StatusOK, "the local apiserver is not asked for what may be another's")
		})
	}
}

// A backend that has only a v2 document has it converted again only if it has changed, or after a failure.
func TestConvertedOnce(t *testing.T) {
	s := newStage(t)
	own := []schema.GroupVersion{{Group: "a.example.com", Version: "v1"}, {Group: "b.example.com", Version: "v1"}}
	q := s.o.question(nil, &state{}, own...)
	q.take(pack(must.Get(json.Marshal(specOf(define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))))(t)), "")
	must.Do(t, q.converted(t.Context()))
	check.Same(t, true, q.now[0].v3 != nil && q.now[1].v3 != nil, "documents: %+v", q.now)
	known := &state{versions: map[schema.GroupVersion]version{own[0]: q.now[0], own[1]: q.now[1]}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it needs no turn
	s.o.heavy <- struct{}{}
	same := s.o.question(nil, known, own...)
	err := same.converted(ctx)
	check.Same(t, true, err == nil && slices.Equal(same.now, q.now), "unchanged: %v", err)
	known.err = context.Canceled
	check.Same(t, true, s.o.question(nil, known, own...).converted(ctx) != nil, "converted again after a failure")
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
		left := strings.Count(text, "#/parameters/p")
		check.Same(t, false, left > 3000 || left > 0 && !strings.Contains(p, "name"), "%.100s: %d references", p, left)
		_, err := toV3(sw)
		check.Same(t, refused, err != nil, "%.100s: refused, by %v", p, err)
	}
}

// Run fails if this process cannot describe itself.
func TestOwnGroupMissing(t *testing.T) {
	s := newStage(t)
	for name, h := range map[string]http.HandlerFunc{"nothing": saying(http.StatusNotFound, ""), "another": serving(define("apps/v1", "x")), "garbage": saying(http.StatusOK, "]")} {
		s.Set("own", h)
		s.cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.Answer("own", r) }
		s.make()
		check.Fault(t, "reading OpenAPI of this process itself", s.o.Run(t.Context()), "%s", name)
	}
}

// weighing is a client that looks how much memory is in use while a response is written to it.
type weighing struct {
	*httptest.ResponseRecorder
	heap float64
}

func (w *weighing) Write(b []byte) (int, error) {
	if w.heap == 0 {
		w.heap = scene.Heap()
	}
	return w.ResponseRecorder.Write(b)
}

// A client that does not read its response must not keep a document in memory: it can have hundreds of requests. Nor
// has it a part unpacked: who asks for some gets the whole, which takes as long as it is read (RFC 9110 §14.2).
func TestUnreadDocument(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 8<<16)
	p := pack([]byte(body))
	for _, header := range []http.Header{{}, {"Range": {"bytes=5-5,0-0"}}, {"Range": {"bytes=-1"}}} {
		w := &weighing{ResponseRecorder: httptest.NewRecorder()}
		w.Body.Grow(len(body))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi/v2", nil)
		r.Header = header
		before := scene.Heap()
		p.serve(w, r, typeJSON, p.hash)
		kept := w.heap - before
		check.Same(t, true, kept <= 1<<20, "%v: %.1f MB are in use for a document of %d MB", header, kept/(1<<20), len(body)>>20)
		check.Same(t, http.StatusOK, w.Code, "status")
		check.Same(t, "8388608", w.Header().Get("Content-Length"), "length")
		check.Same(t, true, w.Body.String() == body, "%v: the document arrived, of %d bytes", header, w.Body.Len())
	}
}

// The protobuf form of a v3 document takes the place in which v2 documents are decoded: many users
// may ask for those of many backends.
func TestProtobufInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		d := s.o.newDocument(schema.GroupVersion{}, nil, []byte(`{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{}}`))
		release := must.Get(s.o.question(nil, &state{}).begin(t.Context()))(t)
		done := make(chan error, 1)
		go func() {
			_, err := d.proto()
			done <- err
		}()
		synctest.Wait()
		check.Same(t, 0, len(done), "made while a document is decoded")
		release()
		must.Do(t, <-done)
		check.Same(t, 0, len(s.o.heavy), "places taken afterwards")
	})
}

// A backend whose document is costly rests for four times as long, however often it recovers.
func TestCostlyDocumentsRest(t *testing.T) {
	s := newStage(t)
	s.Claim("a.example.com/v1", "a", 100, 10)
	doc := specOf(define("a.example.com/v1", "as"))
	all := make([]object, 5000)
	for i := range all {
		all[i] = object{"type": "object"}
	}
	doc["definitions"].(object)["def.a.example.com.v1"].(object)["allOf"] = all
	for path, body := range map[string]string{
		"/openapi/v2":                       string(must.Get(json.Marshal(doc))(t)),
		"/openapi/v3/apis/a.example.com/v1": `{"openapi":"3.0.0","x-a":"` + strings.Repeat("a", 4<<20) + `"}`,
	} {
		s.Set("a", only(path, saying(http.StatusOK, body), only("/openapi/v2", http.NotFound, serving(define("a.example.com/v1", "as")))))
		next, _ := must.Get2(s.o.ask(t.Context(), &state{}, s.Table().Entries()))(t)
		rest := next.rested.Sub(next.confirmed)
		check.Same(t, true, rest >= time.Millisecond, "after %d bytes of %s it rests for %s", len(body), path, rest) // it took some 50
	}
	inBubble(t, func(t *testing.T, s *stage) {
		s.host("a", define("a.example.com/v1", "as"))
		var asking sync.WaitGroup
		asking.Go(func() {
			_, _, _ = s.o.ask(t.Context(), &state{rested: time.Now().Add(10 * time.Second)}, s.Table().Entries())
		})
		s.Pass(9 * time.Second)
		check.Same(t, 0, len(s.Questions("a")), "questions before its time")
		asking.Wait()
		check.Same(t, 3, len(s.Questions("a")), "questions then")
		begun := time.Now()
		_, _, _ = s.o.ask(t.Context(), &state{rested: begun.Add(time.Hour)}, s.Table().Entries())
		check.Same(t, mostRest, time.Since(begun).Round(time.Second), "the rest after an hour in which the process was stopped")

		gone, leave := context.WithCancel(t.Context())
		leave()
		_, _, err := s.o.ask(gone, &state{rested: time.Now().Add(time.Hour)}, s.Table().Entries())
		check.Same(t, true, errors.Is(err, context.Canceled), "a backend that has left: %v", err)
	})
}
