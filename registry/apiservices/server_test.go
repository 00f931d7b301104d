package apiservices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	typed "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

// source is a registry that the test writes to.
type source struct {
	in    registry.Input
	table atomic.Pointer[registry.Table]
}

func newSource() *source {
	s := &source{in: registry.Input{
		APIServices: make(map[string]*apiregistrationv1.APIService), Options: &registry.Options{Directory: true}, Now: time.Unix(1_700_000_000, 0),
	}}
	s.table.Store(registry.Build(s.in, nil))
	return s
}

func object(name string, labels map[string]string) *apiregistrationv1.APIService {
	v, group, _ := strings.Cut(name, ".")
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
		Spec:       apiregistrationv1.APIServiceSpec{Group: group, Version: v, GroupPriorityMinimum: 100, VersionPriority: 10},
	}
}

func remote(name, service string) *apiregistrationv1.APIService {
	o := object(name, nil)
	o.Spec.InsecureSkipTLSVerify = true
	o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "x", Name: service}
	return o
}

// serve serves the source's table over HTTP. Changed publishes what the test wrote and waits until it is served.
func serve(t *testing.T, s *source) (url string, changed func()) {
	t.Helper()
	server, err := New(Config{Table: s.table.Load, Version: &version.Info{GitVersion: "v1.36.3"}})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(server)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	made := make(map[*registry.Entry]*apiregistrationv1.APIService)
	return h.URL, func() {
		s.in.Complete = true
		s.table.Store(registry.Build(s.in, s.table.Load()))
		made = server.store.follow(s.table.Load(), made)
	}
}

func get(t *testing.T, url, accept string) (*http.Response, string) {
	t.Helper()
	return do(t, http.MethodGet, url, accept)
}

func do(t *testing.T, method, url, accept string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func client(t *testing.T, url, contentType string) typed.APIServiceInterface {
	t.Helper()
	c, err := typed.NewForConfig(&rest.Config{Host: url, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: contentType}})
	if err != nil {
		t.Fatal(err)
	}
	return c.APIServices()
}

func names(l *apiregistrationv1.APIServiceList) []string {
	out := []string{}
	for _, o := range l.Items {
		out = append(out, o.Name)
	}
	return out
}

func TestRead(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	for _, o := range []*apiregistrationv1.APIService{
		object("v1.", nil), object("v1.apps", map[string]string{"tier": "a"}), object("v1.b.io", map[string]string{"tier": "b"}), remote("v1.a.io", "gone"),
	} {
		s.in.APIServices[o.Name] = o
	}
	res, body := get(t, url+"/apis/apiregistration.k8s.io/v1/apiservices", "")
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "1" {
		t.Errorf("before the first table: %d %q: %s", res.StatusCode, res.Header.Get("Retry-After"), body)
	}
	changed()
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		c := client(t, url, contentType)
		all, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"v1.", "v1.a.io", "v1.apps", "v1.b.io"}, names(all)); d != "" {
			t.Errorf("%s: list (-want +got):\n%s", contentType, d)
		}
		o, err := c.Get(t.Context(), "v1.a.io", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: "ServiceNotFound",
			Message: `service/gone in "x" is not present`, LastTransitionTime: metav1.NewTime(s.in.Now),
		}
		if d := cmp.Diff([]apiregistrationv1.APIServiceCondition{want}, o.Status.Conditions); d != "" {
			t.Errorf("%s: conditions (-want +got):\n%s", contentType, d)
		}
		if _, err := c.Get(t.Context(), "v1.nowhere", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: get of what is not there: %v", contentType, err)
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
			l, err := c.List(t.Context(), metav1.ListOptions{LabelSelector: tc.labels, FieldSelector: tc.fields})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, names(l)); d != "" {
				t.Errorf("%s: %q %q (-want +got):\n%s", contentType, tc.labels, tc.fields, d)
			}
		}
		if _, err := c.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.group=x"}); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: foreign field selector: %v", contentType, err)
		}
	}
	res, body = get(t, url+"/apis/apiregistration.k8s.io/v1/apiservices/v1.a.io/status", "")
	if res.StatusCode != http.StatusOK || !strings.Contains(body, "ServiceNotFound") {
		t.Errorf("status: %d %s", res.StatusCode, body)
	}
}

func TestTables(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	s.in.APIServices["v1.a.io"] = remote("v1.a.io", "gone")
	s.in.APIServices["v1.apps"] = object("v1.apps", nil)
	changed()
	list := url + "/apis/apiregistration.k8s.io/v1/apiservices"
	_, body := get(t, list, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil {
		t.Fatal(err)
	}
	var got [][]any
	for _, r := range table.Rows {
		got = append(got, r.Cells[:3])
	}
	want := [][]any{{"v1.a.io", "x/gone", "False (ServiceNotFound)"}, {"v1.apps", "Local", "True"}}
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
	s := newSource()
	url, changed := serve(t, s)
	var want []string
	for i := range 10 {
		o := object(fmt.Sprintf("v1.g%d.io", i), nil)
		s.in.APIServices[o.Name] = o
		want = append(want, o.Name)
	}
	changed()
	c := client(t, url, runtime.ContentTypeJSON)
	var got []string
	options := metav1.ListOptions{Limit: 3}
	first := ""
	for i := 0; ; i++ {
		l, err := c.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = l.ResourceVersion
			if l.RemainingItemCount == nil || *l.RemainingItemCount != 7 {
				t.Errorf("remaining %v", l.RemainingItemCount)
			}
			// What changes meanwhile must not end the list.
			s.in.APIServices["v1.zz.io"] = object("v1.zz.io", nil)
			changed()
		}
		if l.ResourceVersion != first {
			t.Errorf("page %d has resource version %s, the first %s", i, l.ResourceVersion, first)
		}
		got = append(got, names(l)...)
		if l.Continue == "" {
			break
		}
		options.Continue = l.Continue
	}
	if d := cmp.Diff(append(want, "v1.zz.io"), got); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
	for _, bad := range []string{"!", "e30", "bm9uc2Vuc2U"} {
		if _, err := c.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: bad}); !apierrors.IsBadRequest(err) {
			t.Errorf("continue=%s: %v", bad, err)
		}
	}
	old := page{Revision: 1, After: "v1.a.io"}.String()
	if _, err := c.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: old}); !apierrors.IsResourceExpired(err) {
		t.Errorf("an old continue token: %v", err)
	}
}

func TestWritesAreRefused(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	s.in.APIServices["v1.apps"] = object("v1.apps", nil)
	changed()
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

func TestNotFound(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	changed()
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

// next takes the next event of a watch.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "end"
		}
		switch o := e.Object.(type) {
		case *apiregistrationv1.APIService:
			text := string(e.Type) + " " + o.Name
			if o.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				text += " initial"
			}
			return text
		case *metav1.Status:
			return fmt.Sprintf("%s %s", e.Type, o.Reason)
		}
		return fmt.Sprintf("%s %T", e.Type, e.Object)
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
		return ""
	}
}

func TestWatch(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	s.in.APIServices["v1.apps"] = object("v1.apps", map[string]string{"tier": "a"})
	s.in.APIServices["v1.b.io"] = object("v1.b.io", nil)
	changed()
	c := client(t, url, runtime.ContentTypeProtobuf)
	yes := true
	open := func(o metav1.ListOptions) watch.Interface {
		t.Helper()
		w, err := c.Watch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	list, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := open(metav1.ListOptions{})
	since := open(metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	selected := open(metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "tier=a"})
	named := open(metav1.ListOptions{FieldSelector: "metadata.name=v1.b.io"})
	stream := open(metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})

	expect := func(what string, w watch.Interface, want ...string) {
		t.Helper()
		for _, want := range want {
			if got := next(t, w); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
	}
	expect("all", all, "ADDED v1.apps", "ADDED v1.b.io")
	expect("named", named, "ADDED v1.b.io")
	expect("stream", stream, "ADDED v1.apps", "ADDED v1.b.io", "BOOKMARK  initial")

	s.in.APIServices["v1.b.io"] = object("v1.b.io", map[string]string{"tier": "a"}) // begins to match
	s.in.APIServices["v1.c.io"] = object("v1.c.io", nil)
	changed()
	s.in.APIServices["v1.apps"] = object("v1.apps", nil) // ceases to match
	changed()
	delete(s.in.APIServices, "v1.b.io")
	changed()
	everything := []string{"MODIFIED v1.b.io", "ADDED v1.c.io", "MODIFIED v1.apps", "DELETED v1.b.io"}
	expect("all", all, everything...)
	expect("since", since, everything...)
	expect("stream", stream, everything...)
	expect("selected", selected, "ADDED v1.b.io", "DELETED v1.apps", "DELETED v1.b.io")
	expect("named", named, "MODIFIED v1.b.io", "DELETED v1.b.io")

	for rv, want := range map[string]func(error) bool{
		"1":                    apierrors.IsResourceExpired,
		"18446744073709551615": apierrors.IsTimeout,
		"x":                    apierrors.IsBadRequest,
	} {
		if w, err := c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: rv}); err == nil || !want(err) {
			t.Errorf("watch from %s: %v %v", rv, w, err)
		}
	}
}

func TestWatchAsTable(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	s.in.APIServices["v1.apps"] = object("v1.apps", nil)
	changed()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/apis/apiregistration.k8s.io/v1/apiservices?watch=1&timeoutSeconds=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var e struct {
		Type   string
		Object metav1.Table
	}
	if err := json.NewDecoder(res.Body).Decode(&e); err != nil || e.Type != "ADDED" || len(e.Object.Rows) != 1 || e.Object.Rows[0].Cells[0] != "v1.apps" {
		t.Errorf("first event %+v: %v", e, err)
	}
}

// TestSlowWatcher holds that who reads too slowly is told to list again, and that the history is bounded.
func TestSlowWatcher(t *testing.T) {
	s := newStore()
	made := make(map[*registry.Entry]*apiregistrationv1.APIService)
	src := newSource()
	src.in.Complete = true
	write := func(n int) {
		for i := range n {
			src.in.APIServices[fmt.Sprintf("v1.g%d.io", i)] = object(fmt.Sprintf("v1.g%d.io", i), map[string]string{"n": fmt.Sprint(time.Now().UnixNano())})
		}
		src.table.Store(registry.Build(src.in, src.table.Load()))
		made = s.follow(src.table.Load(), made)
	}
	write(2)
	w := &watcher{store: s, selector: selectorOf(&metainternalversion.ListOptions{}), at: s.state().revision, events: make(chan watch.Event)}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(t.Context())
	write(history/2 + 1)
	write(history/2 + 1)
	go w.run(ctx)
	if got := next(t, w); got != "ERROR Expired" {
		t.Errorf("first event %s", got)
	}
	if got := next(t, w); got != "end" {
		t.Errorf("second event %s", got)
	}
	if n := len(s.state().events); n != history {
		t.Errorf("history of %d events", n)
	}
}

func TestReflector(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	for i := range 20 {
		o := object(fmt.Sprintf("v1.g%d.io", i), nil)
		s.in.APIServices[o.Name] = o
	}
	changed()
	c := client(t, url, runtime.ContentTypeProtobuf)
	lw := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: c.Watch,
	}
	events := make(chan string, 100)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw, ObjectType: &apiregistrationv1.APIService{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { events <- "add " + o.(*apiregistrationv1.APIService).Name },
			DeleteFunc: func(o any) { events <- "delete" },
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		informer.RunWithContext(ctx)
		close(done)
	}()
	defer func() {
		cancel()
		<-done
	}()
	for range 20 {
		<-events
	}
	s.in.APIServices["v1.new.io"] = object("v1.new.io", nil)
	changed()
	if e := <-events; e != "add v1.new.io" {
		t.Errorf("event %s", e)
	}
	delete(s.in.APIServices, "v1.new.io")
	changed()
	if e := <-events; e != "delete" {
		t.Errorf("event %s", e)
	}
}

func TestDiscovery(t *testing.T) {
	s := newSource()
	url, changed := serve(t, s)
	changed()
	c, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: url})
	if err != nil {
		t.Fatal(err)
	}
	groups, lists, err := c.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
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
	if d := cmp.Diff([]string{"get", "list", "watch"}, verbs); d != "" {
		t.Errorf("verbs (-want +got):\n%s", d)
	}
	if v, err := c.ServerVersion(); err != nil || v.GitVersion != "v1.36.3" {
		t.Errorf("version %v: %v", v, err)
	}
	// The same without aggregated discovery.
	c.UseLegacyDiscovery = true
	groups, lists, err = c.ServerGroupsAndResources()
	if err != nil || len(lists) != 1 || groups[len(groups)-1].Name != "apiregistration.k8s.io" {
		t.Errorf("legacy: %v %v: %v", groups, lists, err)
	}
	for path, want := range map[string]string{
		"/apis/":                          `"kind":"APIGroupList"`,
		"/apis/apiregistration.k8s.io":    `"kind":"APIGroup"`,
		"/apis/apiregistration.k8s.io/":   `"kind":"APIGroup"`,
		"/apis/apiregistration.k8s.io/v1": `"kind":"APIResourceList"`,
		"/api":                            `"kind":"APIVersions"`,
		"/openapi/v2":                     "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
		"/openapi/v3":                     "apis/apiregistration.k8s.io/v1",
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
		t.Error("no table is no error")
	}
	dir := t.TempDir()
	r, err := registry.New(registry.Config{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Table: r.Table})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- r.Run(ctx) }()
	go func() { done <- s.Run(ctx) }()
	for !s.store.state().read {
		<-s.store.state().superseded
	}
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}
