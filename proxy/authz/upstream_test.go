package authz

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/reviews"
)

// SubjectAccessReviews are sent to a real server with Kubernetes' own client.
func TestSubjectAccessReview(t *testing.T) {
	var seen []authorizationv1.SubjectAccessReviewSpec
	server := reviews.Serve(t, "/apis/authorization.k8s.io/v1/subjectaccessreviews", func(sar *authorizationv1.SubjectAccessReview) {
		seen = append(seen, sar.Spec)
		sar.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: sar.Spec.User == "alice", Denied: sar.Spec.User == "mallory", Reason: "because"}
	})
	z := newAuthorizer(t, Config{Review: SubjectAccessReview(must.Get(authorizationclient.NewForConfig(server.REST))(t))})
	alice := &user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string][]string{"k": {"v"}}}
	resource := &Attributes{User: alice, RequestInfo: request.RequestInfo{
		Verb: "list", IsResourceRequest: true, APIGroup: "wardle.example.com", APIVersion: "v1", Resource: "flunders", Subresource: "status",
		Namespace: "ns", Name: "n", Path: "/ignored",
		FieldSelector: "metadata.name=n", LabelSelector: "app in (a,b)",
	}}
	path := asks(alice, "/openapi/v2")
	path.APIGroup = "ignored"
	for _, a := range []*Attributes{resource, resource, path, path} { // the second one cached
		check.Same(t, Decision{Allowed: true, Reason: "because"}, must.Get(z.Authorize(t.Context(), a))(t), "what alice may")
	}
	for _, name := range []string{"bob", "mallory"} {
		check.Same(t, Decision{Reason: "because"}, must.Get(z.Authorize(t.Context(), get(name)))(t), "what %s may", name)
	}
	who := authorizationv1.SubjectAccessReviewSpec{User: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}}}
	wantResource, wantPath := who, who
	wantResource.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Verb: "list", Group: "wardle.example.com", Version: "v1", Resource: "flunders", Subresource: "status", Namespace: "ns", Name: "n",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n"}}}},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: []string{"a", "b"}}}},
	}
	wantPath.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/openapi/v2"}
	check.Same(t, []authorizationv1.SubjectAccessReviewSpec{wantResource, wantPath}, seen[:2], "reviews")
	check.Same(t, 4, len(seen), "reviews")
	server.Close()
	d, err := z.Authorize(t.Context(), get("somebody"))
	check.Same(t, true, err != nil && !d.Allowed, "refused without a server: %v, %v", d, err)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // also what is pooled
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Of a review nothing is kept but what Authorizer's cache has, which is bounded. A question has six times the bytes of
// its path, as JSON, which is just short enough for the cache of Kubernetes' client.
func TestReviewsKeepNothing(t *testing.T) {
	server := reviews.Serve(t, "/apis/authorization.k8s.io/v1/subjectaccessreviews", func(*authorizationv1.SubjectAccessReview) {})
	server.REST.QPS = -1
	review := SubjectAccessReview(must.Get(authorizationclient.NewForConfig(server.REST))(t))
	ask := func(i int) {
		path := fmt.Sprintf("/%04d%s", i, strings.Repeat("<", maxCached-10))
		must.Get2(review(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "alice"}, Verb: "get", Path: path}))(t)
	}
	ask(0)
	before := heap()
	for i := range 200 {
		ask(i + 1)
	}
	kept := heap() - before
	check.Same(t, true, kept <= 3<<20, "a bound for %d bytes that are kept of 200 reviews", kept)
}

// What kube-apiserver answers is a permission only if it says so, and nothing else that it might say: conditions
// (KEP-5681) are a field that this release does not know. What the caller has sent may be a question that can never be
// answered: it is denied, with the reason, and is no failure of reviews. What could not be decided is one.
func TestConditional(t *testing.T) {
	const invalid = `"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "reason": "Invalid", ` +
		`"message": `
	long := strings.Repeat("x", 1<<10)
	const chain = `[{"authorizerName": "policy", "conditionsType": "k8s.io/cel", "conditions": [{"id": "one", "effect": "Allow", "condition": "true"}]}]`
	for answer, want := range map[string]string{
		`"status": {"allowed": true}`:                                      "{true } <nil>",
		`"status": {"allowed": false, "conditionSetChain": ` + chain + `}`: "{false } <nil>",
		`"status": {"allowed": true, "denied": true}`:                      "{false } authorizing: webhook subject access review returned both allow and deny response",
		`"status": {}`: "{false } <nil>",
		`"status": {"allowed": true, "evaluationError": "down"}`:                                  "{true } <nil>",
		`"status": {"allowed": false, "evaluationError": "read tcp 1.1.1.1:3->1.1.1.2:4: reset"}`: `{false } authorizing: Post "/apis/authorization.k8s.io/v1/subjectaccessreviews": the local apiserver could not decide: read tcp 1.1.1.2:4: reset`,

		invalid + `"key: Required value"`: "{false key: Required value} <nil>",
		invalid + `"` + long + `x"`:       "{false " + long + "…} <nil>",
	} {
		asked, code := 0, http.StatusCreated
		if strings.Contains(answer, "422") {
			code = http.StatusUnprocessableEntity
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "{"+answer+"}")
		}))
		config := &rest.Config{Host: server.URL, WrapTransport: Evaluated}
		client := must.Get(authorizationclient.NewForConfig(config))(t)
		z := newAuthorizer(t, Config{Review: SubjectAccessReview(client)})
		for range 2 { // the second one cached, but for an error
			d, err := z.Authorize(t.Context(), get("alice"))
			check.Same(t, want, strings.ReplaceAll(fmt.Sprint(d, " ", err), server.URL, ""), "what is made of %s", answer)
		}
		if !strings.Contains(want, "authorizing: ") {
			check.Same(t, 1, asked, "reviews")
			check.Same(t, 1., testutil.ToFloat64(z.reviews.WithLabelValues("denied"))+testutil.ToFloat64(z.reviews.WithLabelValues("allowed")), "reviews counted as answered")
		}
		own := &authorizationv1.SelfSubjectAccessReview{}
		_, err := client.SelfSubjectAccessReviews().Create(t.Context(), own, metav1.CreateOptions{})
		undecided := code != http.StatusCreated || strings.Contains(want, "could not decide")
		check.Same(t, undecided, err != nil, "what is made of %s, asked for one's own rights: %v", answer, err)
		server.Close()
	}
}
