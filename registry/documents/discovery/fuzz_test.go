package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// written returns a list in a media type.
func written(c *codecs, list *apidiscoveryv2.APIGroupDiscoveryList, media string) []byte {
	w := &recorder{header: http.Header{}}
	c.writeAggregated(w, &http.Request{URL: &url.URL{}, Header: http.Header{"Accept": {media + aggregatedParams}}}, list)
	return w.body.Bytes()
}

// recorder is a ResponseWriter that can be used again.
type recorder struct {
	header http.Header
	body   bytes.Buffer
}

func (s *recorder) Header() http.Header         { return s.header }
func (s *recorder) WriteHeader(int)             {}
func (s *recorder) Write(b []byte) (int, error) { return s.body.Write(b) }

// Any answer of a backend is read or refused, and never touches another group: the rest of the
// document is as if the backend had not answered.
func FuzzBackendSays(f *testing.F) {
	d := New(Config{Config: scene.New(f).Config()})
	seeds := []*apidiscoveryv2.APIGroupDiscoveryList{listOf(), listOf("own.example.com/v1=as,bs", "other.example.com/v1=poison"), listOf("own.example.com/v2=x", "own.example.com/v1", "own.example.com/v1=y"), listOf("own.example.com/v1=\xff\xfe")}
	for _, l := range seeds {
		for i, media := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			f.Add(written(d.codecs, l, media), i == 1, false)
		}
	}
	f.Add([]byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"own.example.com/v1","resources":[{"name":"a/b"},{"name":"/"},{"name":"a","namespaced":true}]}`), false, true)
	f.Add([]byte(`{"items":[{"metadata":{"name":"own.example.com"},"versions":[{"version":"v1","resources":[{"subresources":[{}]}]}]}]}`), false, false)
	f.Add([]byte("k8s\x00\xff\xff"), true, false)
	own := &registry.Entry{Name: "v1.own.example.com", GroupVersion: schema.GroupVersion{Group: "own.example.com", Version: "v1"}}
	empty := &state{versions: map[schema.GroupVersion]version{}}
	f.Fuzz(func(t *testing.T, body []byte, proto, legacy bool) {
		media := runtime.ContentTypeJSON
		if proto {
			media = runtime.ContentTypeProtobuf
		}
		a := documents.Answer{Status: http.StatusOK, Header: http.Header{"Content-Type": {media + aggregatedParams}}, Body: bytes.Clone(body)}
		var err error
		found := map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}
		if legacy {
			found[own.GroupVersion], err = d.convert(a)
		} else {
			found, err = d.parse(a)
		}
		if err != nil {
			return
		}
		next, _ := d.taken(empty, []*registry.Entry{own}, found, "")
		must.Be(t, len(next.versions) == 1, "it lists the group-versions %v", next.versions)
		v := next.versions[own.GroupVersion]
		if v.doc == nil {
			return
		}
		must.Be(t, v.doc.Version == "v1" && v.doc.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent, "listed as %s %s", v.doc.Version, v.doc.Freshness)
		for _, r := range v.doc.Resources {
			broken := r.ResponseKind == nil || r.Verbs == nil
			for _, sub := range r.Subresources {
				broken = broken || sub.ResponseKind == nil || sub.Verbs == nil
			}
			must.Be(t, !broken, "%v has a null, at which some clients fail", r)
		}
		list := &apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{{Versions: []apidiscoveryv2.APIVersionDiscovery{*v.doc}}}}
		for _, media := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			back := &apidiscoveryv2.APIGroupDiscoveryList{}
			must.Do(t, decode(d.codecs.aggregated, media, written(d.codecs, list, media), back))
			for _, r := range back.Items[0].Versions[0].Resources {
				must.Be(t, utf8.ValidString(r.Resource) && utf8.ValidString(r.SingularResource), "%q is not UTF-8: clients in other languages refuse the whole document", r.Resource)
			}
		}
		must.Get(json.Marshal(list))(t)
	})
}

// With any Accept field, a client gets the form that Kubernetes' own handlers choose, or their 406;
// it gets the same each time, and the cache of fields stays bounded.
func FuzzAccept(f *testing.F) {
	for _, s := range []string{
		"", "*/*", aggregatedJSON, aggregatedJSON + ",application/json", "application/json;q=0.1, text/html", "a/b;c=d;;,", "application/json;as=;g=;v=", "application/yaml;pretty=1", "application/*;q=0",
		"text/html," + runtime.ContentTypeProtobuf + aggregatedParams, strings.ReplaceAll(aggregatedJSON, "v=v2", "v=v2beta1"), "application/json;as=Table;g=meta.k8s.io;v=v1", "application/json;stream=watch",
	} {
		f.Add(s)
	}
	d := New(Config{Config: scene.New(f).Config()})
	rich := &document{params: aggregatedParams, write: func(w http.ResponseWriter, r *http.Request) { d.codecs.writeAggregated(w, r, listOf()) }}
	legacy := &document{write: func(w http.ResponseWriter, r *http.Request) { d.codecs.writeLegacy(w, r, &metav1.APIGroupList{}) }}
	theirs := aggregated.WrapAggregatedDiscoveryToHandler(apidiscovery.NewRootAPIsHandler(addresses{}, d.codecs.legacy), aggregated.NewResourceManager("apis"), nil)
	f.Fuzz(func(t *testing.T, accept string) {
		answer := func(serve http.HandlerFunc) string {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis", nil)
			r.Header["Accept"] = []string{accept}
			w := httptest.NewRecorder()
			serve(w, r)
			return fmt.Sprintf("%d %q, indented %v", w.Code, w.Header().Get("Content-Type"), bytes.Contains(w.Body.Bytes(), []byte("\n ")))
		}
		begun, want := time.Now(), answer(theirs.ServeHTTP)
		for range 2 { // the second time from the cache
			got := answer(func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, d.choose, rich, legacy) })
			must.Be(t, got == want, "%q is answered %s, want %s", accept, got, want)
		}
		must.Be(t, len(accept) >= 1<<12 || time.Since(begun) <= 5*time.Second, "%q took %s", accept, time.Since(begun))
	})
}
