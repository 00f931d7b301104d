package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"time"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// A document that is too large is requested without its tag: a 304 would hide the problem.
func TestTooLargeHasNoTag(t *testing.T) {
	entries := []*registry.Entry{{Name: "v1.own.example.com", GroupVersion: schema.GroupVersion{Group: "own.example.com", Version: "v1"}}}
	st, known := newStage(t), &state{}
	st.make(Config{MaxBody: 1})
	for _, tt := range []struct {
		text string
		size int
		fits bool
	}{{"a", 1, true}, {"a", small, false}, {"a", small / 4, true}, {"<", small / 4, false}, {"a", 1, true}} {
		next, err := st.d.taken(known, entries, byGroupVersion(listOf("own.example.com/v1="+strings.Repeat(tt.text, tt.size))), `"tag"`)
		check.Same(t, true, (err == nil) == tt.fits && st.d.covers(next, entries) == tt.fits, "%d bytes: %v, requested with its tag: %v", tt.size, err, st.d.covers(next, entries))
		known = next
	}
}

// The first documents wait for backends even if the APIServices were late, as when a machine starts: until then nothing
// could be asked, and a document with all Stale would fail every namespace deletion.
func TestLateStart(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set(scene.Home, serving(listOf("apps/v1=deployments")))
		s.Set("back", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-time.After(time.Second)
			serving(listOf("a.example.com/v1=as"))(w, r)
		}))
		s.Input.Complete = false
		s.Build()
		s.open(Config{})
		s.Pass(time.Minute)
		s.Input.Complete = true
		s.Claim("a.example.com/v1", "back", 100, 10)
		s.Pass(500 * time.Millisecond)
		check.Same(t, true, s.d.Ready() != nil, "listed before the backend could answer:\n%s", s.show())
		s.Pass(time.Second)
		check.Same(t, "apps/v1 Current deployments\na.example.com/v1 Current as\nstatus v1.a.example.com 1  confirmed\n", s.show(), "documents")
	})
}

// At the start local apiservers are compared once each has answered: until then nobody knows what only it has, and what
// is asked for that would get 404 from another one. But nobody waits for one that is down.
func TestFirstComparison(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.servers = []string{"one", "two"}
		s.Set("one", serving(listOf("apps/v1=deployments")))
		s.Set("two", hanging)
		s.Input.Complete = false
		s.Build()
		s.open(Config{})
		s.Pass(time.Second)
		s.Input.Complete = true
		s.Build()
		s.Pass(400 * time.Millisecond)
		check.Same(t, true, s.known.Load() == nil, "compared while another one may answer")
		s.Pass(200 * time.Millisecond)
		check.Same(t, &[]string{"one"}, s.known.Load(), "who gets clients")
	})
}

// What a backend lists beside its own group-version is not kept: the bounds do not count it.
func TestStrangersAreNotKept(t *testing.T) {
	list := listOf("own.example.com/v1=a", "own.example.com/v2=b")
	stranger := weak.Make(&list.Items[0].Versions[1].Resources[0])
	own := byGroupVersion(list)[schema.GroupVersion{Group: "own.example.com", Version: "v1"}]
	goruntime.GC()
	check.Same(t, true, stranger.Value() == nil && own.Resources[0].Resource == "a", "kept beside %v: %v", own, stranger.Value())
}

// A large group-version is served whole, though its server's document of all is too large. One that
// is too large itself keeps its last resources, costs no other one of its server theirs, and is
// named; one that stays the same is not decoded again.
func TestLarge(t *testing.T) {
	const entries = 20_000 // of legacy discovery, 2.6 MB
	metrics := func(n int) []byte {
		list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
		for i := range n {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: fmt.Sprintf("requests-%d", i), Kind: "MetricValueList", Verbs: []string{"get"}, Categories: []string{"all of them"}})
		}
		return must.Get(json.Marshal(list))(t)
	}
	st := newStage(t)
	for _, group := range []string{"a", "b", "c"} {
		st.Claim(group+".example.com/v1", "server", 100, 10)
	}
	st.make(Config{MaxBody: 3 << 20})
	says := map[string][]byte{
		"/apis/a.example.com/v1": metrics(entries), "/apis/b.example.com/v1": metrics(entries), "/apis/c.example.com/v1": metrics(3), "/apis": metrics(2 * entries),
	}
	st.Set("server", func(w http.ResponseWriter, r *http.Request) {
		saying(http.StatusOK, runtime.ContentTypeJSON, says[r.URL.Path])(w, r)
	})
	known := &state{}
	ask := func(want ...int) string {
		t.Helper()
		next, _, err := st.d.ask(t.Context(), known, st.Table().Entries())
		known = next
		for i, e := range st.Table().Entries() {
			v := next.versions[e.GroupVersion]
			check.Same(t, false, v.doc == nil && want[i] > 0 || v.doc != nil && len(v.doc.Resources) != want[i], "%s: not %d resources: %v", e.Name, want[i], v.err)
		}
		return fmt.Sprint(err)
	}
	check.Same(t, "<nil>", ask(entries, entries, 3), "error")
	first := known.versions[st.Table().Entries()[0].GroupVersion].doc
	says["/apis/b.example.com/v1"] = metrics(entries + 1<<14)
	check.Has(t, ask(entries, entries, 3), "getting /apis/b.example.com/v1: ", "at most 3145728")
	check.Same(t, true, known.versions[st.Table().Entries()[0].GroupVersion].doc == first, "not decoded again")
	check.Same(t, 0, len(st.d.turn), "turns taken")
}

// A legacy list is only read as JSON, for which the backend was asked, whatever media type it has: Go guesses
// text/plain for who says none. In protobuf it may have texts that are not UTF-8, for which clients in other languages
// reject the whole merged document.
func TestLegacyMedia(t *testing.T) {
	d := &Discovery{codecs: newCodecs()}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, APIResources: []metav1.APIResource{{Name: "as", Kind: "A"}}}
	info, _ := runtime.SerializerInfoForMediaType(d.codecs.legacy.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	proto, text := must.Get(runtime.Encode(info.Serializer, list))(t), must.Get(json.Marshal(list))(t)
	yaml := []byte("kind: APIResourceList\napiVersion: v1\nresources:\n- {name: as, kind: A}\n")
	for media, want := range map[string]bool{
		"": true, "application/json; charset=utf-8": true, "text/plain; charset=utf-8": true, ";": true, "text/plain; bom": true,
		runtime.ContentTypeProtobuf: false, runtime.ContentTypeYAML: false,
	} {
		body, header := text, http.Header{}
		switch media {
		case runtime.ContentTypeProtobuf:
			body = proto
		case runtime.ContentTypeYAML:
			body = yaml
		case "text/plain; bom":
			body = append([]byte("\xef\xbb\xbf"), text...)
		}
		if media != "" {
			header.Set("Content-Type", media)
		}
		doc, err := d.convert(documents.Answer{Header: header, Body: body})
		check.Same(t, true, (err == nil) == want && (!want || len(doc.Resources) == 1), "%q: %v, %v", media, doc, err)
	}
}

// Truncated protobuf is refused, not read partially.
func TestBrokenProtobuf(t *testing.T) {
	st := newStage(t)
	st.make(Config{})
	st.Set(scene.Home, saying(http.StatusOK, runtime.ContentTypeProtobuf+aggregatedParams, []byte("k8s\x00\xff\xff")))
	list, _, err := st.d.list(t.Context(), st.d.cfg.Local(""), "/apis", "")
	check.Same(t, true, err != nil, "it is read as %v", list)
}

// A backend's document of few bytes that takes much memory is refused before it is decoded, and so is protobuf, in
// which its objects cannot be counted: of both kinds, the resources stay as they were.
func TestDenseDocuments(t *testing.T) {
	many := func(item string, n int) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	aggregated := func(items string) http.HandlerFunc {
		return saying(http.StatusOK, aggregatedJSON, []byte(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[`+items+`]}`))
	}
	legacy := func(items string) http.HandlerFunc {
		list := []byte(`{"kind":"APIResourceList","apiVersion":"v1","resources":[` + items + `]}`)
		return saying(http.StatusOK, runtime.ContentTypeJSON, list) // to a request for /apis, too
	}
	group := func(resources string) http.HandlerFunc {
		return aggregated(`{"metadata":{"name":"a.example.com"},"versions":[{"version":"v1","resources":[` + resources + `]}]}`)
	}
	for name, h := range map[string]http.HandlerFunc{
		"groups":            aggregated(many("{}", maxObjects)),
		"resources":         group(many("{}", maxObjects)),
		"subresources":      group(`{"subresources":[` + many("{}", maxObjects) + `]}`),
		"verbs":             group(`{"verbs":[` + many(`""`, maxValues+2) + `]}`),
		"legacy":            legacy(many("{}", maxObjects)),
		"a long kind":       saying(http.StatusOK, aggregatedJSON, []byte(`{"kind":"`+strings.Repeat("a", 1<<20)+`","apiVersion":"apidiscovery.k8s.io/v2"}`)),
		"legacy verbs":      legacy(`{"verbs":[` + many(`""`, maxValues+2) + `]}`),
		"unasked: protobuf": saying(http.StatusOK, runtime.ContentTypeProtobuf+aggregatedParams, written(newCodecs(), listOf("a.example.com/v1=lies"), runtime.ContentTypeProtobuf)),
	} {
		t.Run(name, func(t *testing.T) {
			st := newStage(t)
			st.Claim("a.example.com/v1", "a", 100, 10)
			st.make(Config{})
			st.Set("a", serving(listOf("a.example.com/v1=as")))
			known, _, err := st.d.ask(t.Context(), &state{}, st.Table().Entries())
			must.Do(t, err)
			before := known.versions[st.Table().Entries()[0].GroupVersion].doc
			st.Set("a", h)
			var m, later goruntime.MemStats
			goruntime.ReadMemStats(&m)
			known, _, err = st.d.ask(t.Context(), known, st.Table().Entries())
			goruntime.ReadMemStats(&later)
			failed, ok := errors.AsType[*documents.Error](err)
			check.Same(t, true, ok && failed.Reason == documents.ReasonInvalid && len(err.Error()) <= 2<<10, "it is refused as %.2000v", err)
			check.Same(t, true, known.versions[st.Table().Entries()[0].GroupVersion].doc == before, "the resources stay")
			check.Within(t, 0, 60, (later.TotalAlloc-m.TotalAlloc)>>20, "MB that it took") // decoding 100,000 objects takes twice that
		})
	}
}
