package authz

import (
	"encoding/json"
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

// Upstream decides as Authorize does, and shares its cache, except for questions with selectors:
// they bypass it, valid or not. A review gets all that Upstream gets.
func TestUpstream(t *testing.T) {
	const allow, noOpinion = authorizer.DecisionAllow, authorizer.DecisionNoOpinion
	of := func(name string, change func(*Attributes)) authorizer.AttributesRecord {
		a := get(name)
		if change != nil {
			change(a)
		}
		return a.record()
	}
	field := func(a *Attributes) { a.FieldSelector = "metadata.name=x" }
	for _, tt := range []struct {
		name    string
		ask     authorizer.AttributesRecord
		want    authorizer.Decision
		err     bool
		reviews int64 // of two questions
	}{
		{"allowed", of("alice", nil), allow, false, 1},
		{"allowed in spite of an error", of("partial", nil), allow, false, 1},
		{"no opinion", of("bob", nil), noOpinion, false, 1},
		{"denied", of("denied", nil), noOpinion, false, 1},
		{"an error", of("broken", nil), noOpinion, true, 2},
		{"a panic", of("panic", nil), noOpinion, true, 2},
		{"a subresource", of("alice", func(a *Attributes) { a.Subresource = "status" }), allow, false, 1},
		{"a path", of("alice", func(a *Attributes) { *a = Attributes{User: a.User, Verb: "get", Path: "/metrics"} }), allow, false, 1},
		{"fields", of("alice", field), allow, false, 2},
		{"labels", of("alice", func(a *Attributes) { a.LabelSelector = "app=x" }), allow, false, 2},
		{"invalid fields", of("alice", func(a *Attributes) { a.FieldSelector = "a" }), allow, false, 2},
		{"invalid labels", of("alice", func(a *Attributes) { a.LabelSelector = "=" }), allow, false, 2},
		{"system:masters, with fields", of("x", func(a *Attributes) {
			field(a)
			a.User = &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}
		}), allow, false, 0},
		{"nobody, with fields", of("x", func(a *Attributes) { field(a); a.User = nil }), noOpinion, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newAsked()
			z := newAuthorizer(t, Config{Review: r.review})
			for range 2 {
				if d, _, err := z.Upstream().Authorize(t.Context(), tt.ask); d != tt.want || (err != nil) != tt.err {
					t.Errorf("%v, %v", d, err)
				}
			}
			check.Same(t, tt.reviews, r.N.Load(), "reviews")
			if tt.reviews > 0 {
				check.Same(t, spelledRecord(tt.ask), spelledRecord(*r.last.Load()), "the review")
			}
		})
	}
	for _, ask := range []authorizer.AttributesRecord{of("alice", nil), of("alice", field)} {
		if d, _, err := newAuthorizer(t, Config{}).Upstream().Authorize(t.Context(), ask); d != noOpinion || err != nil {
			t.Errorf("%v, %v without a reviewer", d, err)
		}
	}
}

// spelledRecord formats all of a question, with its user.
func spelledRecord(a authorizer.AttributesRecord) string {
	u := a.User
	a.User = nil
	return fmt.Sprint(u, a)
}
