package apiservices

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// The steps of these stories, beside those of scene.Tell:
//
//	put <apiservice> [service=<name>] [url=<url>] [<label>=<value>]…
//	watch <name> <query>   expect shows the events of all watches since then
func TestStories(t *testing.T) {
	before := utilruntime.ErrorHandlers // k8s.io/apiserver's mux logs a path that is registered twice as an error
	defer func() { utilruntime.ErrorHandlers = before }()
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(_ context.Context, err error, _ string, _ ...any) { t.Error(err) }}
	scene.Tell(t, func(tb testing.TB) *scene.Scene {
		s, watches := scene.New(tb), map[string]*httptest.ResponseRecorder{}
		var watching sync.WaitGroup
		s.From = served(s)
		tb.Cleanup(watching.Wait) // they end with the test's context
		s.Own = map[string]func([]string){
			"put": func(words []string) {
				labels := map[string]string{}
				o := object(words[0], labels)
				for _, w := range words[1:] {
					switch name, value, _ := strings.Cut(w, "="); name {
					case "service":
						o.Spec.Service = remote(o.Name, value).Spec.Service
					case "url":
						o.Annotations = map[string]string{"fairlead.dev/url": value}
					default:
						labels[name] = value
					}
				}
				put(s, o)
			},
			"watch": func(words []string) {
				w := httptest.NewRecorder()
				watches[words[0]] = w
				r := httptest.NewRequestWithContext(s.Context(), http.MethodGet, root+"/v1/apiservices?watch=1&"+words[1], nil)
				watching.Go(func() { s.From.ServeHTTP(w, r) })
			},
		}
		s.Show = func() string {
			var b strings.Builder
			for _, name := range slices.Sorted(maps.Keys(watches)) {
				fmt.Fprintf(&b, "%s: %d\n%s", name, watches[name].Code, events(s, watches[name].Body))
			}
			return b.String()
		}
		return s
	})
}

// Client-go reads all this, in any of its forms.
func TestClients(t *testing.T) {
	s, url := serve(t)
	put(s, object("v1.apps", nil), remote("v1.a.io", "gone"))
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		c := client(t, url, contentType)
		all := must.Get(c.List(t.Context(), metav1.ListOptions{}))(t)
		check.Same(t, []string{"v1.a.io", "v1.apps"}, names(all), "%s: list", contentType)
		check.Same(t, "ServiceNotFound", all.Items[0].Status.Conditions[0].Reason, "%s: reason", contentType)
		fails(t, apierrors.IsMethodNotSupported, "", c.Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}), "%s: delete", contentType)
	}
	c := must.Get(discovery.NewDiscoveryClientForConfig(&rest.Config{Host: url}))(t)
	check.Same(t, "APIService", must.Get(c.ServerResourcesForGroupVersion("apiregistration.k8s.io/v1"))(t).APIResources[0].Kind, "the first resource")
	check.Same(t, "v1.36.3", must.Get(c.ServerVersion())(t).GitVersion, "version")
	for path, want := range map[string]string{
		"/openapi/v2": "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
		"/openapi/v3/apis/apiregistration.k8s.io/v1": "/apis/apiregistration.k8s.io/v1/apiservices/{name}",
	} {
		res, body := get(t, url+path, "application/json")
		check.Same(t, true, res.StatusCode == http.StatusOK && strings.Contains(body, want), "%s: %d %.300s", path, res.StatusCode, body)
	}
}
