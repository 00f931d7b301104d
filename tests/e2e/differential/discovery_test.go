//go:build e2e

package differential

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.%[2]s}
spec:
  group: %[2]s
  names: {plural: %[1]ss, singular: %[1]s, kind: %[3]s, shortNames: [%[4]s]}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}},
     subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}}
  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

const (
	asV2 = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	asB1 = ";g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

// accepts returns Accept fields that clients send, or could send.
func accepts() []string {
	return []string{
		"", "*/*", "application/*", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor",
		"application/json;pretty=1", "application/json" + asV2, "application/vnd.kubernetes.protobuf" + asV2, "application/yaml" + asV2, "application/cbor" + asV2,
		"application/json" + asV2 + ";pretty=1", "*/*" + asV2,
		// client-go since 1.30, kubectl 1.26–1.29, and a client that knows only v2beta1
		"application/json" + asV2 + ",application/json" + asB1 + ",application/json", "application/json" + asB1 + ",application/json", "application/json" + asB1,
		"application/vnd.kubernetes.protobuf" + asV2 + ",application/json" + asV2 + ",application/json",
		"application/json" + asV2 + ";profile=nopeer", "application/json" + asV2 + ";profile=other", "application/json;as=Table;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json",
		"text/html", "text/html,application/json;q=0.5", "application/json;q=0.1,application/yaml;q=0.9", "application/json;stream=watch", "application/json;sv=1", "garbage", "application/json;;;", "application/json;unknown=1",
	}
}

// TestDiscovery compares every discovery document in every form.
func TestDiscovery(t *testing.T) {
	w := newWorld(t, "--protected-groups=-")
	must.Get(w.StartSampleAPIServer(t.Context()))(t)
	w.define(t, fmt.Sprintf(crd, "crontab", "stable.example.com", "CronTab", "ct"))
	w.define(t, fmt.Sprintf(crd, "gadget", "mixed.example.com", "Gadget", "gd"))
	w.extend(t, "legacy", extension.Config{LegacyDiscovery: true}, map[string]priority{"legacy.example.com/v1": {1000, 10}, "legacy.example.com/v1beta1": {1000, 5}})
	w.extend(t, "orders", extension.Config{}, map[string]priority{
		// Ties between groups: the legacy list sorts by the APIService's name (the version first),
		// the aggregated list by group.
		"zebra.example.com/v1": {2000, 10}, "ape.example.com/v1beta1": {2000, 10}, "cat.example.com/v2": {2000, 10}, "cat.example.com/v1": {2000, 10},
		// The highest priority of a group's versions counts.
		"top.example.com/v1": {100, 20}, "top.example.com/v1alpha1": {19000, 10},
		// Versions are sorted by priority, then as Kubernetes compares versions.
		"many.example.com/v1": {500, 10}, "many.example.com/v10": {500, 10}, "many.example.com/v2": {500, 10}, "many.example.com/v11beta2": {500, 10}, "many.example.com/v3alpha1": {500, 10},
		"many.example.com/foo10": {500, 10}, "many.example.com/foo1": {500, 10}, "many.example.com/v1alpha9": {500, 99}, "many.example.com/v12": {600, 1},
	})
	w.extend(t, "guest", extension.Config{}, map[string]priority{"mixed.example.com/v2": {1500, 50}, "apps/v9": {17000, 99}, "autoscaling/v1alpha9": {17700, 1}})
	w.extend(t, "silent", extension.Config{Wrap: func(http.Handler) http.Handler { // from its first request on
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusServiceUnavailable) })
	}}, map[string]priority{"silent.example.com/v1": {700, 10}})
	w.eachLane(t, testDiscovery)
}

func testDiscovery(t *testing.T, w *world) {
	v2 := http.Header{"Accept": {"application/json" + asV2}}
	took := suite.Eventually(t, 3*time.Minute, "both list the same", func() (bool, string) {
		a, b := w.ask(t, w.Endpoint(), "/apis", v2), w.ask(t, w.front.Endpoint, "/apis", v2)
		w.nulls = strings.Contains(a.Body, "creationTimestamp")
		w.plain(t, &a, &b)
		all := strings.Contains(b.Body, "crontabs") && strings.Contains(b.Body, "gadgets") && strings.Contains(b.Body, "flunders")
		return a.Body == b.Body && strings.Count(b.Body, `"Stale"`) == 1 && all, cmp.Diff(a.Body, b.Body)
	})
	t.Logf("equal after %s", took)
	paths := []string{"/api", "/api/", "/apis", "/apis/", "/apis/nosuch.example.com", "/apis/nosuch.example.com/", "/apis/nosuch.example.com/v1"}
	for _, group := range []string{"apps", "apiregistration.k8s.io", "mixed.example.com", "many.example.com", "cat.example.com", "silent.example.com", "legacy.example.com", "stable.example.com", "wardle.example.com", "apiextensions.k8s.io"} {
		paths = append(paths, "/apis/"+group, "/apis/"+group+"/")
	}
	queries := []string{"", "?pretty=true", "?pretty=false", "?timeout=3s"}
	for _, path := range paths {
		for _, query := range queries {
			for _, accept := range accepts() {
				if w.nulls && strings.Contains(accept, "v2beta1") {
					continue // they have it still; Fairlead's clients ask for each group then
				}
				w.same(t, path+query, http.Header{"Accept": {accept}})
			}
		}
		w.same(t, path, http.Header{"User-Agent": {"curl/8.0"}})
		w.same(t, path, http.Header{"User-Agent": {"Mozilla/5.0 (X11)"}, "Accept": {"text/html,*/*;q=0.8"}})
		w.same(t, path, http.Header{"Accept": nil})
	}
	for _, path := range []string{"/api", "/apis", "/apis/", "/apis/apps"} {
		for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
			want, got := w.send(t, method, w.Endpoint(), path, nil), w.send(t, method, w.front.Endpoint, path, nil)
			if want.Code != got.Code || want.Body != got.Body {
				t.Errorf("%s %s: %d %.300q, kube-apiserver's %d %.300q", method, path, got.Code, got.Body, want.Code, want.Body)
			}
		}
	}
	t.Run("conditional", func(t *testing.T) { testConditional(t, w) })
}

func testConditional(t *testing.T, w *world) {
	for _, path := range []string{"/apis", "/api"} {
		accept := []string{"application/json" + asV2}
		tags := [2]string{}
		for i, e := range []cluster.Endpoint{w.Endpoint(), w.front.Endpoint} {
			tags[i] = w.ask(t, e, path, http.Header{"Accept": accept}).Header.Get("Etag")
		}
		for _, accept := range []string{accept[0], "application/vnd.kubernetes.protobuf" + asV2, "application/json"} {
			w.compare(t, path, http.Header{"Accept": {accept}, "If-None-Match": {tags[0]}}, http.Header{"Accept": {accept}, "If-None-Match": {tags[1]}})
		}
		w.same(t, path, http.Header{"Accept": accept, "If-None-Match": {`"0"`}})
		w.same(t, path, http.Header{"Accept": accept, "If-None-Match": {strings.Trim(tags[0], `"`)}})
		zipped := http.Header{"Accept": accept, "Accept-Encoding": {"gzip"}}
		got := w.ask(t, w.front.Endpoint, path, zipped)
		check.Same(t, true, path != "/apis" || got.Header.Get("Content-Encoding") == "gzip", "%s is not compressed", path)
	}
}

// same sends a request to both servers and compares the answers.
func (w *world) same(t *testing.T, path string, header http.Header) {
	t.Helper()
	w.compare(t, path, header, header)
}

// compare sends each server a request of its own.
func (w *world) compare(t *testing.T, path string, past, here http.Header) {
	t.Helper()
	want, got := w.ask(t, w.Endpoint(), path, past), w.ask(t, w.front.Endpoint, path, here)
	fields := []string{"Content-Type"}
	if strings.Contains(want.Header.Get("Content-Type"), "as=APIGroupDiscoveryList") || want.Code == http.StatusNotModified {
		if fields = append(fields, "Cache-Control", "Vary"); !w.nulls { // a hash of the document
			fields = append(fields, "Etag")
		}
	}
	name := fmt.Sprintf("%s %v", path, past)
	w.plain(t, &want, &got)
	if agree(t, name, want, got, fields...) && want.Body != got.Body {
		t.Errorf("%s: %s", name, cmp.Diff(want.Body, got.Body))
	}
}

// plain makes bodies comparable if one has creationTimestamp: null.
func (w *world) plain(t *testing.T, want, got *ask.Reply) {
	t.Helper()
	if !w.nulls || !strings.Contains(want.Body, "creationTimestamp: null") && !strings.Contains(want.Body, `creationTimestamp":`) || got.Code != http.StatusOK {
		return
	}
	for _, r := range []*ask.Reply{want, got} {
		var doc any
		must.Do(t, yaml.Unmarshal([]byte(r.Body), &doc))
		r.Body = string(must.Get(json.Marshal(timed(doc)))(t))
	}
}

// timed removes each creationTimestamp that is null.
func timed(doc any) any {
	switch v := doc.(type) {
	case map[string]any:
		for key, inner := range v {
			if timed(inner); key == "creationTimestamp" && inner == nil {
				delete(v, key)
			}
		}
	case []any:
		for _, inner := range v {
			timed(inner)
		}
	}
	return doc
}

// agree compares the statuses and fields of two answers. It reports whether the statuses are equal.
func agree(t *testing.T, name string, want, got ask.Reply, fields ...string) bool {
	t.Helper()
	if want.Code != got.Code {
		t.Errorf("%s: status %d, kube-apiserver's %d: %.300s\n%.300s", name, got.Code, want.Code, got.Body, want.Body)
		return false
	}
	for _, field := range fields {
		a, b := want.Header.Values(field), got.Header.Values(field)
		if field == "Vary" { // kube-apiserver adds it only to compressed answers
			b = slices.DeleteFunc(b, func(v string) bool { return v == "Accept-Encoding" })
		}
		check.Same(t, true, slices.Equal(a, b), "%s: %s %q, kube-apiserver's %q", name, field, b, a)
	}
	return true
}
