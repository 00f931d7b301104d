package authz

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// SubjectAccessReviews are sent to a real server with Kubernetes' own client.
func TestSubjectAccessReview(t *testing.T) {
	var seen []authorizationv1.SubjectAccessReviewSpec
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sar authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&sar); err != nil || r.URL.Path != "/apis/authorization.k8s.io/v1/subjectaccessreviews" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		seen = append(seen, sar.Spec)
		sar.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: sar.Spec.User == "alice", Denied: sar.Spec.User == "mallory", Reason: "because"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(sar)
	}))
	defer s.Close()
	client := must.Get(authorizationclient.NewForConfig(&rest.Config{Host: s.URL}))(t)
	z := newAuthorizer(t, Config{Review: must.Get(SubjectAccessReview(client))(t)})
	alice := &user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string][]string{"k": {"v"}}}
	resource := &Attributes{
		User: alice, Verb: "list", ResourceRequest: true, Group: "wardle.example.com", Version: "v1", Resource: "flunders", Subresource: "status",
		Namespace: "ns", Name: "n", Path: "/ignored", FieldSelector: "metadata.name=n", LabelSelector: "app in (a,b)",
	}
	path := &Attributes{User: alice, Verb: "get", Path: "/openapi/v2", Group: "ignored"}
	for _, a := range []*Attributes{resource, resource, path, path} { // the second one cached
		if d, err := z.Authorize(t.Context(), a); err != nil || d != (Decision{Allowed: true, Reason: "because"}) {
			t.Errorf("%v, %v", d, err)
		}
	}
	for _, name := range []string{"bob", "mallory"} {
		if d, err := z.Authorize(t.Context(), get(name)); err != nil || d != (Decision{Reason: "because"}) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
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
	s.Close()
	if d, err := z.Authorize(t.Context(), get("somebody")); d.Allowed || err == nil {
		t.Errorf("%v, %v without a server", d, err)
	}
}

// text is what is in a review.
func text(a authorizer.AttributesRecord) string {
	u := a.User
	a.User = nil
	return fmt.Sprint(u, a)
}

func TestUpstream(t *testing.T) {
	r := newAsked()
	z := newAuthorizer(t, Config{Review: r.review})
	up := z.Upstream()
	ask := func(name string, change func(*authorizer.AttributesRecord)) (authorizer.Decision, error) {
		rec := get(name).record()
		change(&rec)
		d, _, err := up.Authorize(t.Context(), rec)
		return d, err
	}
	same := func(*authorizer.AttributesRecord) {}
	for name, want := range map[string]authorizer.Decision{
		"alice": authorizer.DecisionAllow, "partial": authorizer.DecisionAllow, "bob": authorizer.DecisionNoOpinion, "denied": authorizer.DecisionNoOpinion,
		"broken": authorizer.DecisionNoOpinion, "panic": authorizer.DecisionNoOpinion,
	} {
		if d, err := ask(name, same); d != want || (err != nil) != (name == "broken" || name == "panic") {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	// Upstream shares the cache with Authorize.
	r.N.Store(0)
	if d, ok := z.Cached(get("alice")); !ok || !d.Allowed {
		t.Error("an approval is not cached")
	}
	if d, err := ask("alice", same); d != authorizer.DecisionAllow || err != nil || r.N.Load() != 0 {
		t.Errorf("%v, %v, reviewed %d times", d, err, r.N.Load())
	}
	// Parsed selectors bypass the cache, and do not count as no selector. Nor do invalid ones.
	selecting := func(field, label string) func(*authorizer.AttributesRecord) {
		a := get("alice")
		a.FieldSelector, a.LabelSelector = field, label
		return func(rec *authorizer.AttributesRecord) { *rec = a.record() }
	}
	selective := selecting("metadata.name=x", "")
	for name, change := range map[string]func(*authorizer.AttributesRecord){
		"field": selective, "label": selecting("", "app=x"), "invalid field": selecting("a", ""), "invalid label": selecting("", "="),
	} {
		r.N.Store(0)
		var want authorizer.AttributesRecord
		change(&want)
		for range 2 {
			if d, err := ask("alice", change); d != authorizer.DecisionAllow || err != nil {
				t.Errorf("%s: %v, %v", name, d, err)
			}
		}
		if got := r.last.Load(); r.N.Load() != 2 || text(want) != text(*got) {
			t.Errorf("%s: reviewed %d times, last %s, want %s", name, r.N.Load(), text(*got), text(want))
		}
	}
	// A review gets all that Upstream gets.
	for _, a := range []*Attributes{get("alice"), {User: get("alice").User, Verb: "get", Path: "/metrics"}} {
		a.Subresource = "status"
		want := a.record()
		_, _, err := up.Authorize(t.Context(), want)
		if got := text(*r.last.Load()); err != nil || got != text(want) {
			t.Errorf("reviewed %s, want %s: %v", got, text(want), err)
		}
	}
	if d, err := ask("x", func(a *authorizer.AttributesRecord) {
		selective(a)
		a.User = &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}
	}); d != authorizer.DecisionAllow || err != nil {
		t.Errorf("%v, %v", d, err)
	}
	if d, err := ask("x", func(a *authorizer.AttributesRecord) { selective(a); a.User = nil }); d == authorizer.DecisionAllow || err == nil {
		t.Errorf("%v, %v without a user", d, err)
	}
	if d, _, err := newAuthorizer(t, Config{}).Upstream().Authorize(t.Context(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "alice"}, ResourceRequest: true, LabelSelectorParsingErr: errors.New("broken"),
	}); d == authorizer.DecisionAllow || err != nil {
		t.Errorf("%v, %v without a reviewer", d, err)
	}
}
