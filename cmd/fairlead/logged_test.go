package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Queries are their sender's, who may repeat them without limit, and may hold secrets: Kubernetes' libraries log none,
// whether they make a review fail or cannot be read.
func TestQueriesAreNotLogged(t *testing.T) {
	const selector = "xyzzy"
	before := len(logged.String())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422, "message": %q}`, selector)
	}))
	defer server.Close()
	ann := &user.DefaultInfo{Name: "ann"}
	ask := authz.SubjectAccessReview(must.Get(authorizationv1client.NewForConfig(&rest.Config{Host: server.URL}))(t))
	_, why, err := ask(t.Context(), authorizer.AttributesRecord{User: ann, Verb: "get", Path: "/x"})
	must.Do(t, err)
	check.Same(t, selector, why, "reason")

	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/a.example.com/v1/things", nil)
	r.Header.Set("Impersonate-User", "bob")
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: "a.example.com", APIVersion: "v1", Resource: "things", FieldSelector: selector}
	served := false
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })
	all := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	})
	ctx := request.WithRequestInfo(request.WithUser(r.Context(), ann), info)
	impersonation.WithConstrainedImpersonation(next, all, metainternalversionscheme.Codecs).ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
	check.Same(t, true, served, "served")

	query := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/apiregistration.k8s.io/v1/apiservices?limit="+selector, nil)
	aloneDoor(t).apiServices.ServeHTTP(httptest.NewRecorder(), query)
	check.Lacks(t, logged.String()[before:], selector)
}

// What net/http says by itself comes as lines of the log: directly, it would wait for a reader that is paused.
func TestNetHTTPLogs(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("of a handler") }))
	defer server.Close()
	res, err := server.Client().Do(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil))(t))
	if err == nil {
		_ = res.Body.Close()
	}
	check.Has(t, logged.String(), "msg=\"http: panic serving ")
}
