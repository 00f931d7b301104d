package apiservices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

func TestRead(t *testing.T) {
	s, url := serve(t)
	res, body := get(t, url+"/apis/apiregistration.k8s.io/v1/apiservices", "")
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "1" {
		t.Errorf("before the first table: %d %q: %s", res.StatusCode, res.Header.Get("Retry-After"), body)
	}
	put(s, object("v1.", nil), object("v1.apps", map[string]string{"tier": "a"}), object("v1.b.io", map[string]string{"tier": "b"}), remote("v1.a.io", "gone"))
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		c := client(t, url, contentType)
		all := must.Get(c.List(t.Context(), metav1.ListOptions{}))(t)
		check.Same(t, []string{"v1.", "v1.a.io", "v1.apps", "v1.b.io"}, names(all), "%s: list", contentType)
		o := must.Get(c.Get(t.Context(), "v1.a.io", metav1.GetOptions{}))(t)
		want := apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: "ServiceNotFound",
			Message: `service/gone in "x" is not present`, LastTransitionTime: metav1.NewTime(s.Input.Now).Rfc3339Copy(),
		}
		check.Same(t, []apiregistrationv1.APIServiceCondition{want}, o.Status.Conditions, "%s: conditions", contentType)
		if _, err := c.Get(t.Context(), "v1.nowhere", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: get of a missing object: %v", contentType, err)
		}
		for _, tc := range []struct {
			labels, fields string
			want           []string
		}{
			{labels: "tier=a", want: []string{"v1.apps"}},
			{labels: "tier in (a,b)", want: []string{"v1.apps", "v1.b.io"}},
			{fields: "metadata.name=v1.b.io", want: []string{"v1.b.io"}},
			{fields: "metadata.name!=v1.b.io", labels: "tier", want: []string{"v1.apps"}},
			{labels: "tier=c", want: []string{}},
		} {
			l := must.Get(c.List(t.Context(), metav1.ListOptions{LabelSelector: tc.labels, FieldSelector: tc.fields}))(t)
			check.Same(t, tc.want, names(l), "%s: %q %q", contentType, tc.labels, tc.fields)
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.group=x"}); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: unknown field selector: %v", contentType, err)
		}
	}
	res, body = get(t, url+"/apis/apiregistration.k8s.io/v1/apiservices/v1.a.io/status", "")
	if res.StatusCode != http.StatusOK || !strings.Contains(body, "ServiceNotFound") {
		t.Errorf("status: %d %s", res.StatusCode, body)
	}
}

func TestTables(t *testing.T) {
	s, url := serve(t)
	s.Input.APIServices["v1.a.io"] = remote("v1.a.io", "gone")
	s.Input.APIServices["v1.apps"] = object("v1.apps", nil)
	s.Input.APIServices["v1.b.io"] = object("v1.b.io", nil)
	s.Input.APIServices["v1.b.io"].Annotations = map[string]string{"fairlead.dev/url": "https://b.example.com"}
	s.Build()
	list := url + "/apis/apiregistration.k8s.io/v1/apiservices"
	_, body := get(t, list, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	var table metav1.Table
	must.Do(t, json.Unmarshal([]byte(body), &table))
	var got [][]any
	for _, r := range table.Rows {
		got = append(got, r.Cells[:3])
	}
	want := [][]any{{"v1.a.io", "x/gone", "False (ServiceNotFound)"}, {"v1.apps", "Local", "True"}, {"v1.b.io", "https://b.example.com", "False (InvalidURL)"}}
	if d := cmp.Diff(want, got); d != "" || table.Rows[0].Cells[3] != "60m" || len(table.ColumnDefinitions) != 4 || table.ResourceVersion == "" {
		t.Errorf("table %s (-want +got):\n%s", body, d)
	}
	for accept, want := range map[string]string{
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io": `"kind":"PartialObjectMetadataList"`,
		"application/yaml": "kind: APIServiceList",
	} {
		if res, body := get(t, list, accept); res.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", accept, res.StatusCode, body)
		}
	}
	if res, body := get(t, list+"/v1.apps", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"); !strings.Contains(body, `"kind":"PartialObjectMetadata"`) || strings.Contains(body, "groupPriority") {
		t.Errorf("one object's metadata: %d %s", res.StatusCode, body)
	}
	if res, _ := get(t, list, "text/html"); res.StatusCode != http.StatusNotAcceptable {
		t.Errorf("text/html: %d", res.StatusCode)
	}
}

func TestPages(t *testing.T) {
	s, url := serve(t)
	var want []string
	for i := range 10 {
		o := object(fmt.Sprintf("v1.g%d.io", i), nil)
		s.Input.APIServices[o.Name] = o
		want = append(want, o.Name)
	}
	s.Build()
	c := client(t, url, runtime.ContentTypeJSON)
	var got []string
	options := metav1.ListOptions{Limit: 3}
	first := ""
	for i := 0; ; i++ {
		l := must.Get(c.List(t.Context(), options))(t)
		if i == 0 {
			first = l.ResourceVersion
			if l.RemainingItemCount == nil || *l.RemainingItemCount != 7 {
				t.Errorf("remaining %v", l.RemainingItemCount)
			}
			// A change between two pages neither ends the list nor appears in it.
			put(s, object("v1.zz.io", nil))
		}
		check.Same(t, first, l.ResourceVersion, "page %d: resource version", i)
		got = append(got, names(l)...)
		if l.Continue == "" {
			break
		}
		options.Continue = l.Continue
	}
	check.Same(t, want, got, "pages")
	for _, bad := range []string{"!", "e30", "bm9uc2Vuc2U"} {
		if _, err := c.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: bad}); !apierrors.IsBadRequest(err) {
			t.Errorf("continue=%s: %v", bad, err)
		}
	}
	old := must.Get(storage.EncodeContinue("/v1.a.io", "/", 1))(t)
	if _, err := c.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: old}); !apierrors.IsResourceExpired(err) {
		t.Errorf("an old continue token: %v", err)
	}
}

func TestWritesAreRefused(t *testing.T) {
	s, url := serve(t)
	put(s, object("v1.apps", nil))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		res, body := do(t, method, url+"/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", "")
		var status metav1.Status
		if err := json.Unmarshal([]byte(body), &status); err != nil {
			t.Fatalf("%s: %v: %s", method, err, body)
		}
		if res.StatusCode != http.StatusMethodNotAllowed || status.Reason != metav1.StatusReasonMethodNotAllowed || !strings.Contains(status.Message, "dir:") ||
			res.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d %v %s", method, res.StatusCode, res.Header, body)
		}
		if res, body := do(t, method, url+"/apis/apps/v1/deployments", ""); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s elsewhere: %d %s", method, res.StatusCode, body)
		}
	}
	if err := client(t, url, runtime.ContentTypeProtobuf).Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("delete by client-go: %v", err)
	}
}

// k8s.io/apiserver's mux logs a path that is registered twice as an error with two stack traces.
func TestPaths(t *testing.T) {
	before := utilruntime.ErrorHandlers
	defer func() { utilruntime.ErrorHandlers = before }()
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(_ context.Context, err error, _ string, _ ...any) { t.Error(err) }}
	s, url := serve(t)
	s.Build()
	for _, path := range []string{
		"/", "/x", "/api/v1", "/api/v1/pods", "/apis/apps", "/apis/apps/v1", "/apis/apiregistration.k8s.io/v2", "/apis/apiregistration.k8s.io/v1/things",
		"/apis/apiregistration.k8s.io/v1/apiservices/v1.a/scale", "/apis/apiregistration.k8s.io/v1/namespaces/x/apiservices", "/openapi/v3/apis/apps/v1",
		"/apis/apiregistration.k8s.io/v1/apiservices/v1.a/status/more",
	} {
		if res, body := get(t, url+path, ""); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
}

func TestDiscovery(t *testing.T) {
	s, url := serve(t)
	s.Build()
	c := must.Get(discovery.NewDiscoveryClientForConfig(&rest.Config{Host: url}))(t)
	groups, lists := must.Get2(c.ServerGroupsAndResources())(t)
	if len(groups) != 1 || groups[0].Name != "apiregistration.k8s.io" || len(lists) != 1 {
		t.Fatalf("groups %v, lists %v", groups, lists)
	}
	var verbs []string
	for _, r := range lists[0].APIResources {
		if r.Name == "apiservices" {
			verbs = r.Verbs
			if r.Namespaced || r.Kind != "APIService" || r.SingularName != "apiservice" || !slices.Equal(r.Categories, []string{"api-extensions"}) {
				t.Errorf("resource %+v", r)
			}
		}
	}
	check.Same(t, []string{"get", "list", "watch"}, verbs, "verbs")
	if v, err := c.ServerVersion(); err != nil || v.GitVersion != "v1.36.3" {
		t.Errorf("version %v: %v", v, err)
	}
	// Legacy discovery lists the same.
	c.UseLegacyDiscovery = true
	groups, lists, err := c.ServerGroupsAndResources()
	if err != nil || len(lists) != 1 || groups[len(groups)-1].Name != "apiregistration.k8s.io" {
		t.Errorf("legacy: %v %v: %v", groups, lists, err)
	}
	for path, want := range map[string]string{
		"/apis/":                           `"kind":"APIGroupList"`,
		"/apis/apiregistration.k8s.io":     `"kind":"APIGroup"`,
		"/apis/apiregistration.k8s.io/":    `"kind":"APIGroup"`,
		"/apis/apiregistration.k8s.io/v1":  `"kind":"APIResourceList"`,
		"/apis/apiregistration.k8s.io/v1/": `"kind":"APIResourceList"`,
		"/api":                             `"kind":"APIVersions"`,
		"/openapi/v2":                      "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
		"/openapi/v3":                      "apis/apiregistration.k8s.io/v1",
		"/openapi/v3/apis/apiregistration.k8s.io/v1": "/apis/apiregistration.k8s.io/v1/apiservices/{name}",
	} {
		if res, body := get(t, url+path, "application/json"); res.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.300s", path, res.StatusCode, body)
		}
	}
	if _, err := c.OpenAPISchema(); err != nil {
		t.Errorf("OpenAPI v2 as protobuf: %v", err)
	}
}

func TestRun(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no error without a table")
	}
	s := must.Get(New(Config{Table: scene.New(t).Table}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for !s.store.state().read {
		<-s.store.state().superseded
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// A caller who may list only one object by name sees no others, with or without the cache.
func TestListOfOne(t *testing.T) {
	s, url := serve(t)
	s.Input.APIServices["v1.a.io"], s.Input.APIServices["v1.b.io"] = object("v1.a.io", nil), object("v1.b.io", map[string]string{"a": "b"})
	s.Build()
	c := client(t, url, runtime.ContentTypeJSON)
	all := must.Get(c.List(t.Context(), metav1.ListOptions{}))(t)
	for _, o := range []metav1.ListOptions{
		{Limit: 1, ResourceVersion: "1"}, {Limit: 1, ResourceVersion: all.ResourceVersion}, {ResourceVersionMatch: metav1.ResourceVersionMatchExact, ResourceVersion: all.ResourceVersion},
	} {
		if both, err := c.List(t.Context(), o); err == nil && !slices.IsSorted(names(both)) {
			t.Errorf("%+v: in the order %v", o, names(both))
		}
		o.FieldSelector = "metadata.name=v1.a.io"
		l, err := c.List(t.Context(), o)
		if err == nil && !slices.Equal(names(l), []string{"v1.a.io"}) {
			t.Errorf("%+v: %v", o, names(l))
		}
		o.FieldSelector, o.LabelSelector = "", "a=b"
		if l, err = c.List(t.Context(), o); err == nil && !slices.Equal(names(l), []string{"v1.b.io"}) {
			t.Errorf("%+v: %v", o, names(l))
		}
	}
}
