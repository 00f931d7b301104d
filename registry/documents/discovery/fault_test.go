package discovery

import (
	"context"
	"errors"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// remote is a client of a real extension server.
func remote(t *testing.T, s *extension.Server) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: s.TLS(), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// fetching is a Config that sends every backend's requests to do.
func fetching(do func(*http.Request) (*http.Response, error)) Config {
	return Config{Config: documents.Config{Fetch: func(_ context.Context, _ *registry.Entry, r *http.Request) (*http.Response, error) {
		return do(r)
	}}}
}

// A document that is too large is requested without its tag: a 304 would hide the problem.
func TestTooLargeHasNoTag(t *testing.T) {
	entries := []*registry.Entry{{Name: "v1.own.example.com", GroupVersion: schema.GroupVersion{Group: "own.example.com", Version: "v1"}}}
	known := &state{}
	for _, tt := range []struct {
		text string
		size int
		fits bool
	}{{"a", 1, true}, {"a", maxVersion, false}, {"a", maxVersion / 4, true}, {"<", maxVersion / 4, false}, {"a", 1, true}} {
		next, err := taken(known, entries, byGroupVersion(listOf("own.example.com/v1="+strings.Repeat(tt.text, tt.size))), `"tag"`)
		if (err == nil) != tt.fits || covers(next, entries) != tt.fits {
			t.Errorf("%d bytes: %v, requested with its tag: %v", tt.size, err, covers(next, entries))
		}
		known = next
	}
}

// A legacy list is decoded by its media type; without one, it is JSON.
func TestLegacyMedia(t *testing.T) {
	d := &Discovery{codecs: must.Get(newCodecs())(t)}
	body := []byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"own.example.com/v1","resources":[{"name":"as","kind":"A","verbs":["get"]}]}`)
	for media, want := range map[string]bool{"": true, "application/json; charset=utf-8": true, "application/vnd.kubernetes.protobuf": false, "application/yaml": false, ";": false} {
		header := http.Header{}
		if media != "" {
			header.Set("Content-Type", media)
		}
		if doc, err := d.convert(documents.Answer{Header: header, Body: body}); (err == nil) != want || want && len(doc.Resources) != 1 {
			t.Errorf("%q: %v, %v", media, doc, err)
		}
	}
}

// Whatever a real backend does to connections and bodies, its resources stay as they were, the
// request ends in time, and another backend is not affected.
func TestFaults(t *testing.T) {
	faults := map[string][]extension.Fault{
		"hang":              {{Kind: extension.Hang}},
		"hang in body":      {{Kind: extension.HangBody}},
		"reset":             {{Kind: extension.Reset}},
		"reset in body":     {{Kind: extension.ResetBody}},
		"status 500":        {{Kind: extension.Status, Code: 500}},
		"status 503":        {{Kind: extension.Status, Code: 503}},
		"redirect":          {{Kind: extension.Redirect, Text: "https://127.0.0.1:1/"}},
		"huge":              {{Kind: extension.HugeBody}},
		"garbage":           {{Kind: extension.Garbage}},
		"endless headers":   {{Kind: extension.EndlessHeaders}},
		"short body":        {{Kind: extension.ShortBody}},
		"unasked 101":       {{Kind: extension.Unasked101}},
		"refuses":           {{Kind: extension.Dead}},
		"no handshake":      {{Kind: extension.HangConnect}},
		"legacy is garbage": {{Kind: extension.NoAggregated, Code: 406}, {Kind: extension.Garbage}},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := extension.Start(t, extension.Config{})
			client := remote(t, s)
			st := newStage(t)
			st.Claim("widgets.example.com/v1", "widgets", 100, 10)
			st.make(fetching(func(r *http.Request) (*http.Response, error) {
				r.URL.Host = strings.TrimPrefix(s.URL(), "https://")
				return client.Do(r)
			}))
			entries := st.Table().Entries()
			known, _, err := st.d.ask(t.Context(), &state{}, entries)
			if err != nil {
				t.Fatal(err)
			}
			before := known.versions[entries[0].GroupVersion]
			if len(before.doc.Resources) != 1 || before.doc.Resources[0].Resource != "widgets" {
				t.Fatalf("read %+v", before.doc)
			}
			// Without the tag, so that the backend sends the whole document again.
			known = &state{versions: known.versions, tried: true}
			must.Do(t, s.Set(fault...))
			client.CloseIdleConnections()
			begun := time.Now()
			known, _, err = st.d.ask(t.Context(), known, entries)
			after := known.versions[entries[0].GroupVersion]
			if err == nil || after.err == nil {
				t.Error("nothing is reported")
			}
			if after.doc != before.doc || after.confirmed != before.confirmed {
				t.Errorf("the listed resources have changed to %+v", after.doc)
			}
			// 5 s for each of two requests, and some for a busy machine.
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("it took %s", took)
			}
			must.Do(t, s.Set())
			client = remote(t, s) // a connection with the rest of a fault would spoil the next request
			if _, _, err := st.d.ask(t.Context(), known, entries); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

// A backend without aggregated discovery is asked for each group-version, with any status code that
// says so.
func TestFallback(t *testing.T) {
	for _, code := range []int{404, 406, 403, 401, 400} {
		s := extension.Start(t, extension.Config{GroupVersions: []string{"widgets.example.com/v1", "widgets.example.com/v2"}})
		must.Do(t, s.Set(extension.Fault{Kind: extension.NoAggregated, Code: code}))
		client := remote(t, s)
		st := newStage(t)
		st.Claim("widgets.example.com/v1", "widgets", 100, 10)
		st.Claim("widgets.example.com/v2", "widgets", 100, 10)
		st.make(fetching(func(r *http.Request) (*http.Response, error) {
			r.URL.Host = s.Addr()
			return client.Do(r)
		}))
		known, _, err := st.d.ask(t.Context(), &state{}, st.Table().Entries())
		if err != nil {
			t.Fatalf("%d: %v", code, err)
		}
		for gv, v := range known.versions {
			if len(v.doc.Resources) != 1 || len(v.doc.Resources[0].Subresources) != 5 || v.doc.Resources[0].ResponseKind.Kind != "Widget" {
				t.Errorf("%d: %s is %+v", code, gv, v.doc)
			}
		}
		if _, changed, err := st.d.ask(t.Context(), known, st.Table().Entries()); changed || err != nil {
			t.Errorf("%d: second request: changed %v, %v", code, changed, err)
		}
	}
}

// A legacy list is only read as JSON, for which the backend was asked: in protobuf it may have
// texts that are not UTF-8, for which clients in other languages reject the whole merged document.
func TestLegacyProtobuf(t *testing.T) {
	d := &Discovery{codecs: must.Get(newCodecs())(t)}
	info, _ := runtime.SerializerInfoForMediaType(d.codecs.legacy.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, APIResources: []metav1.APIResource{{Name: "as", Kind: "A\xff"}}}
	body := must.Get(runtime.Encode(info.Serializer, list))(t)
	if doc, err := d.convert(documents.Answer{Header: http.Header{"Content-Type": {runtime.ContentTypeProtobuf}}, Body: body}); err == nil {
		t.Errorf("it is read as %q", doc.Resources[0].ResponseKind.Kind)
	}
}

// Truncated protobuf is refused, not read partially.
func TestBrokenProtobuf(t *testing.T) {
	st := newStage(t)
	st.make(Config{})
	st.Set(scene.Home, saying(http.StatusOK, runtime.ContentTypeProtobuf+aggregatedParams, []byte("k8s\x00\xff\xff")))
	if list, _, err := st.d.list(t.Context(), st.d.cfg.FetchLocal, "/apis", ""); err == nil {
		t.Errorf("it is read as %v", list)
	}
}

// A backend's document of few bytes that takes much memory is refused before it is decoded, and so
// is protobuf, in which its objects cannot be counted: of both kinds, the resources stay as they
// were.
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
	proto := &sheet{header: http.Header{}}
	must.Get(newCodecs())(t).writeAggregated(proto, listOf("a.example.com/v1=lies"), runtime.ContentTypeProtobuf, false)
	for name, h := range map[string]http.HandlerFunc{
		"groups":            aggregated(many("{}", maxObjects)),
		"resources":         group(many("{}", maxObjects)),
		"subresources":      group(`{"subresources":[` + many("{}", maxObjects) + `]}`),
		"verbs":             group(`{"verbs":[` + many(`""`, maxValues+2) + `]}`),
		"legacy":            legacy(many("{}", maxObjects)),
		"a long kind":       saying(http.StatusOK, aggregatedJSON, []byte(`{"kind":"`+strings.Repeat("a", 1<<20)+`","apiVersion":"apidiscovery.k8s.io/v2"}`)),
		"legacy verbs":      legacy(`{"verbs":[` + many(`""`, maxValues+2) + `]}`),
		"unasked: protobuf": saying(http.StatusOK, runtime.ContentTypeProtobuf+aggregatedParams, proto.body.Bytes()),
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
			if failed, ok := errors.AsType[*documents.Error](err); !ok || failed.Reason != documents.ReasonInvalid || len(err.Error()) > 2<<10 {
				t.Errorf("it is refused as %.2000v", err)
			}
			if known.versions[st.Table().Entries()[0].GroupVersion].doc != before {
				t.Error("the resources have changed")
			}
			if took := (later.TotalAlloc - m.TotalAlloc) >> 20; took > 60 { // decoding 100,000 objects takes twice that
				t.Errorf("it took %d MB", took)
			}
		})
	}
}
