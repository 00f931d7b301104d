package apiservices

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	typed "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

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

// served makes a server for a scene's table. Each Build is served when it returns.
func served(s *scene.Scene) *Server {
	s.Helper()
	s.Input.Options = &registry.Options{Directory: true}
	server := must.Get(New(Config{Tables: s, Version: &version.Info{GitVersion: "v1.36.3"}}))(s)
	s.Cleanup(server.store.stop)
	var last []*registry.Entry
	s.Built = func() {
		server.store.follow(latest.Diff(last, s.Table().Entries()))
		last = s.Table().Entries()
		for server.store.rest.ReadinessCheckFunc() != nil {
			<-time.After(time.Millisecond)
		}
	}
	return server
}

// serve serves a scene's table over HTTP.
func serve(t *testing.T) (s *scene.Scene, url string) {
	t.Helper()
	s = scene.New(t)
	server := served(s)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { server.ServeHTTP(recorder{w}, r) }))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return s, h.URL
}

func protecting(groups ...string) *registry.Options {
	return &registry.Options{ProtectedGroups: groups}
}

// put adds or replaces objects.
func put(s *scene.Scene, all ...*apiregistrationv1.APIService) {
	for _, o := range all {
		s.Input.APIServices[o.Name] = o
	}
	s.Build()
}

// serveFor serves the user that the header User names.
func serveFor(t *testing.T, server *Server) (url string) {
	t.Helper()
	must.Run(t, server.Run)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(recorder{w}, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: r.Header.Get("User")})))
	}))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h.URL
}

func get(t *testing.T, url, accept string) (*http.Response, string) {
	t.Helper()
	return do(t, http.MethodGet, url, accept)
}

func do(t *testing.T, method, url, accept string) (*http.Response, string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, nil))(t)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	res := must.Get(new(http.Client).Do(r))(t)
	defer res.Body.Close()
	body := must.Get(io.ReadAll(res.Body))(t)
	return res, string(body)
}

func client(t *testing.T, url, contentType string) typed.APIServiceInterface {
	t.Helper()
	c := must.Get(typed.NewForConfig(&rest.Config{Host: url, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: contentType}}))(t)
	return c.APIServices()
}

// fails checks an error by a predicate of apierrors, and its text.
func fails(t *testing.T, is func(error) bool, text string, err error, format string, args ...any) {
	t.Helper()
	check.Same(t, true, is(err) && strings.Contains(err.Error(), text), "%s: %v is the expected error", fmt.Sprintf(format, args...), err)
}

func names(l *apiregistrationv1.APIServiceList) []string {
	out := []string{}
	for _, o := range l.Items {
		out = append(out, o.Name)
	}
	return out
}

// recorder can flush but not report that its client has gone, like the front door's writer.
type recorder struct{ http.ResponseWriter }

func (r recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
