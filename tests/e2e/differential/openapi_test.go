//go:build e2e

package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// TestOpenAPI compares the OpenAPI documents.
func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	must.Get(w.StartSampleAPIServer(t.Context()))(t)
	w.define(t, fmt.Sprintf(crd, "crontab", "stable.example.com", "CronTab", "ct"))
	w.define(t, fmt.Sprintf(crd, "gadget", "mixed.example.com", "Gadget", "gd"))
	w.extend(t, "guest", extension.Config{}, map[string]priority{"mixed.example.com/v2": {1500, 50}, "widgets.example.com/v1": {900, 10}})
	w.eachLane(t, func(t *testing.T, w *world) {
		t.Run("v3", func(t *testing.T) { testV3(t, w) })
		t.Run("v2", func(t *testing.T) { testV2(t, w) })
	})
}

func testV3(t *testing.T, w *world) {
	type index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	read := func(a ask.Reply) (i index) {
		err := json.Unmarshal([]byte(a.Body), &i)
		must.Be(t, err == nil, "%v: %.300s", err, a.Body)
		return i
	}
	var theirs, ours index
	suite.Eventually(t, 4*time.Minute, "both know every group-version", func() (bool, string) {
		theirs, ours = read(w.ask(t, w.Endpoint(), "/openapi/v3", nil)), read(w.ask(t, w.front.Endpoint, "/openapi/v3", nil))
		// A deliberate difference: Fairlead takes from a backend only the descriptions of its group-versions, not those
		// of its groups, /apis or /version. Where kube-apiserver has those itself, Fairlead serves kube-apiserver's;
		// kube-apiserver serves those of a random server.
		for path := range theirs.Paths {
			if path == "apis/wardle.example.com" {
				delete(theirs.Paths, path)
			}
			if path == "version" || path == "apis" {
				delete(theirs.Paths, path)
				delete(ours.Paths, path)
			}
		}
		all := cmp.Equal(theirs, ours)
		for _, gv := range []string{"wardle.example.com/v1beta1", "mixed.example.com/v2", "mixed.example.com/v1", "stable.example.com/v1"} {
			all = all && ours.Paths["apis/"+gv].ServerRelativeURL != ""
		}
		return all, cmp.Diff(theirs, ours)
	})
	w.sameHead(t, "/openapi/v3", nil)
	for path, item := range ours.Paths {
		for _, accept := range []string{"", "application/json", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf", "text/html", "*/*"} {
			for _, url := range []string{"/openapi/v3/" + path, item.ServerRelativeURL, "/openapi/v3/" + path + "?hash=OLD"} {
				if strings.HasPrefix(path, "apis/mixed.example.com/v2") || strings.HasPrefix(path, "apis/widgets") {
					continue // that server has no protobuf and no redirects, and kube-apiserver relays its answers
				}
				w.sameDocument(t, url, accept)
			}
		}
	}
	for _, path := range []string{"/openapi/v3/", "/openapi/v3/apis/nosuch.example.com/v1", "/openapi/v3/api/v9", "/openapi/v3/apis/wardle.example.com/v1beta1/", "/openapi/v2/"} {
		w.same(t, path, nil)
	}
}

// sameDocument compares one v3 document. Protobuf is decoded first, because the order of its maps is random.
func (w *world) sameDocument(t *testing.T, path, accept string) {
	t.Helper()
	header := http.Header{"Accept": {accept}}
	want, got := w.ask(t, w.Endpoint(), path, header), w.ask(t, w.front.Endpoint, path, header)
	name := path + " " + accept
	switch remote := strings.Contains(path, "/apis/wardle"); {
	case remote && want.Code == http.StatusBadGateway:
		// kube-apiserver relays the backend's redirect to the document's new address, and its own
		// rule against redirects turns it into 502.
		check.Same(t, http.StatusMovedPermanently, got.Code, "%s: status: %v", name, got.Header)
		check.Same(t, true, strings.Contains(got.Header.Get("Location"), "?hash="), "%s: a redirect to the current document: %v", name, got.Header)
		return
	case remote && want.Code == http.StatusOK && strings.Contains(path, "hash="):
		// It also overwrites the header that lets clients keep a document for ever.
		want.Header.Set("Cache-Control", "public, immutable")
	case remote: // It also repeats this header.
		want.Header["Cache-Control"] = slices.Compact(want.Header["Cache-Control"])
	}
	if !agree(t, name, want, got, "Content-Type", "Etag", "Location", "Cache-Control", "Vary") {
		return
	}
	if strings.HasSuffix(want.Header.Get("Content-Type"), "protobuf") {
		a, b := &openapi_v3.Document{}, &openapi_v3.Document{}
		must.Do(t, proto.Unmarshal([]byte(want.Body), a))
		err := proto.Unmarshal([]byte(got.Body), b)
		check.Same(t, true, err == nil && proto.Equal(a, b), "%s: the documents differ: %v", name, err)
		return
	}
	if want.Body != got.Body {
		t.Errorf("%s: %.2000s", name, cmp.Diff(want.Body, got.Body))
	}
}

func (w *world) sameHead(t *testing.T, path string, header http.Header) {
	t.Helper()
	want, got := w.ask(t, w.Endpoint(), path, header), w.ask(t, w.front.Endpoint, path, header)
	agree(t, fmt.Sprintf("%s %v", path, header), want, got, "Content-Type", "Cache-Control")
}

var number = regexp.MustCompile(`(#/definitions/[^"]+)_v\d+"`)

// unnumbered makes all definitions of one name one. Before 1.36, kube-openapi gives one that
// differs only in its kinds a number of its own; Fairlead merges as its own release does.
func unnumbered(doc map[string]any) (out map[string]any) {
	text, _ := json.Marshal(doc) // decoded before
	_ = json.Unmarshal(number.ReplaceAll(text, []byte(`$1"`)), &out)
	defs, _ := out["definitions"].(map[string]any)
	for name, d := range defs {
		if base, _, numbered := strings.Cut(name, "_v"); numbered && defs[base] != nil {
			delete(defs, name)
		}
		delete(d.(map[string]any), "x-kubernetes-group-version-kind")
	}
	return out
}

func testV2(t *testing.T, w *world) {
	read := func(e cluster.Endpoint) (doc map[string]any) {
		a := w.ask(t, e, "/openapi/v2", http.Header{"Accept": {"application/json"}})
		_ = json.Unmarshal([]byte(a.Body), &doc) // it is not there yet
		return doc
	}
	var ours map[string]any
	suite.Eventually(t, 4*time.Minute, "both v2 documents hold the same", func() (bool, string) {
		theirs := read(w.Endpoint())
		ours = read(w.front.Endpoint)
		if defs, _ := theirs["definitions"].(map[string]any); defs["io.k8s.apimachinery.pkg.apis.meta.v1.Status_v3"] != nil {
			theirs, ours = unnumbered(theirs), unnumbered(ours)
		}
		paths, _ := ours["paths"].(map[string]any)
		return paths["/apis/stable.example.com/v1/crontabs"] != nil && cmp.Equal(theirs, ours), fmt.Sprintf("%.3000s", cmp.Diff(theirs, ours))
	})
	for _, accept := range []string{"", "*/*", "application/json", "text/html", "application/yaml", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"} {
		w.sameHead(t, "/openapi/v2", http.Header{"Accept": {accept}})
	}
	header := http.Header{"Accept": {"application/com.github.proto-openapi.spec.v2.v1.0+protobuf"}}
	doc := &openapi_v2.Document{}
	must.Do(t, proto.Unmarshal([]byte(w.ask(t, w.front.Endpoint, "/openapi/v2", header).Body), doc))
	check.Same(t, len(ours["paths"].(map[string]any)), len(doc.GetPaths().GetPath()), "paths of the JSON form, of the protobuf form")
	tag := w.ask(t, w.front.Endpoint, "/openapi/v2", nil).Header.Get("Etag")
	if a := w.ask(t, w.front.Endpoint, "/openapi/v2", http.Header{"If-None-Match": {`"x", W/` + tag}}); a.Code != http.StatusNotModified {
		t.Errorf("status %d for the document's own tag", a.Code)
	}
}

// claiming answers with an index of OpenAPI v3 that claims paths, and for them with "FOREIGN".
func claiming(paths ...string) func(http.Handler) http.Handler {
	index := map[string]any{}
	for _, path := range paths {
		index[path] = map[string]string{"serverRelativeURL": "https://127.0.0.1/openapi/v3/" + path + "?hash=FOREIGN"}
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch path, below := strings.CutPrefix(r.URL.Path, "/openapi/v3"); {
			case !below:
				next.ServeHTTP(w, r)
			case path == "":
				_ = json.NewEncoder(w).Encode(map[string]any{"paths": index})
			default:
				fmt.Fprint(w, `{"openapi":"3.0.0","info":{"title":"FOREIGN","version":"v"},"paths":{}}`)
			}
		})
	}
}

// TestClaims shows that no index of an extension server replaces documents that are not its own, though the aggregator
// of kube-apiserver believes it. claims.txtar (registry/documents/openapi) has odd paths, and large indexes.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	must.Get(w.StartSampleAPIServer(t.Context()))(t)
	w.define(t, fmt.Sprintf(crd, "crontab", "stable.example.com", "CronTab", "ct"))
	own := map[string]string{
		"apis/apps/v1": ".v1.Deployment", "api/v1": ".v1.Pod", "apis/stable.example.com/v1": ".v1.CronTab", "apis/wardle.example.com/v1beta1": ".v1beta1.Flunder",
		"version": "/version/", "apis/apps": "/apis/apps/", "nosuch": "404",
	}
	w.extend(t, "thief", extension.Config{Wrap: claiming(slices.Collect(maps.Keys(own))...)}, map[string]priority{"thief.example.com/v1": {1500, 50}})
	for path, kind := range own {
		if strings.HasPrefix(kind, ".") {
			suite.Eventually(t, 2*time.Minute, "kube-apiserver believes it about "+path, func() (bool, string) {
				a := w.ask(t, w.Endpoint(), "/openapi/v3/"+path, nil)
				return strings.Contains(a.Body, "FOREIGN"), fmt.Sprint(a.Code)
			})
		}
		suite.Eventually(t, 2*time.Minute, "Fairlead serves the own "+path, func() (bool, string) {
			a := w.ask(t, w.front.Endpoint, "/openapi/v3/"+path, nil)
			return strings.Contains(a.Body+fmt.Sprint(a.Code), kind), fmt.Sprint(a.Code)
		})
		for range 12 { // kube-apiserver chooses by chance
			if a := w.ask(t, w.front.Endpoint, "/openapi/v3/"+path, nil); strings.Contains(a.Body, "FOREIGN") || !strings.Contains(a.Body+fmt.Sprint(a.Code), kind) {
				t.Errorf("/openapi/v3/%s: status %d, want %q: %.200s", path, a.Code, kind, a.Body)
			}
		}
	}
	if a := w.ask(t, w.front.Endpoint, "/openapi/v3", nil); a.Code != http.StatusOK || strings.Contains(a.Body, "FOREIGN") {
		t.Errorf("the index: status %d: %.2000s", a.Code, a.Body)
	}
}
