package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// policy allows requests by rules: "<user> <verb> <resource> <name>".
func policy(rules ...string) func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "broken" {
			return authorizer.DecisionNoOpinion, "", errors.New("connection refused")
		}
		for _, r := range rules {
			if r == strings.Join([]string{a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetName()}, " ") {
				return authorizer.DecisionAllow, "", nil
			}
		}
		return authorizer.DecisionNoOpinion, "", nil
	}
}

// impersonating is a handler that authenticates by a header of the test, and impersonates by
// k8s.io/apiserver's filter, as proxy does.
func impersonating(z *Authorizer) http.Handler {
	h := impersonation.WithConstrainedImpersonation(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context())
		left := 0
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				left++
			}
		}
		fmt.Fprintf(w, "%s %s %q %v, %d fields left", u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), left)
	}), z.Upstream(), scheme.Codecs)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := request.WithRequestInfo(r.Context(), &request.RequestInfo{
			IsResourceRequest: true, Path: r.URL.Path, Verb: "list", APIPrefix: "apis", APIGroup: "wardle.example.com", APIVersion: "v1", Namespace: "ns", Resource: "flunders",
		})
		u := &user.DefaultInfo{Name: r.Header.Get("Test-User"), Groups: []string{"system:authenticated"}}
		h.ServeHTTP(w, r.WithContext(request.WithUser(ctx, u)))
	})
}

func TestImpersonate(t *testing.T) {
	h := impersonating(newAuthorizer(t, Config{Review: policy(
		"alice impersonate users bob", "alice impersonate groups dev", "alice impersonate uids 7", "alice impersonate userextras v",
		"alice impersonate serviceaccounts sa", "alice impersonate groups system:masters",
		"carol impersonate:user-info users bob", "carol impersonate-on:user-info:list flunders ", "carol impersonate:user-info groups dev",
		"dave impersonate:user-info users bob", "dave impersonate-on:user-info:watch flunders ",
	)}))
	tests := []struct {
		name string
		head []string
		code int
		want string
	}{
		{"nobody else", []string{"Test-User", "alice"}, 200, `alice  ["system:authenticated"] map[], 0 fields left`},
		{"a user", []string{"Test-User", "alice", "Impersonate-User", "bob"}, 200, `bob  ["system:authenticated"] map[], 0 fields left`},
		{
			"everything", []string{"Test-User", "alice", "Impersonate-User", "bob", "Impersonate-Group", "dev", "Impersonate-Uid", "7", "Impersonate-Extra-K%2f1", "v"},
			200, `bob 7 ["dev" "system:authenticated"] map[k/1:[v]], 0 fields left`,
		},
		{
			"a service account", []string{"Test-User", "alice", "Impersonate-User", "system:serviceaccount:ns:sa"}, 200,
			`system:serviceaccount:ns:sa  ["system:serviceaccounts" "system:serviceaccounts:ns" "system:authenticated"] map[], 0 fields left`,
		},
		{"masters", []string{"Test-User", "alice", "Impersonate-User", "bob", "Impersonate-Group", "system:masters"}, 200, `bob  ["system:masters" "system:authenticated"] map[], 0 fields left`},
		{"not that user", []string{"Test-User", "alice", "Impersonate-User", "root"}, 403, `"code":403`},
		{"not that group", []string{"Test-User", "alice", "Impersonate-User", "bob", "Impersonate-Group", "ops"}, 403, `"code":403`},
		{"not that extra", []string{"Test-User", "alice", "Impersonate-User", "bob", "Impersonate-Extra-K", "w"}, 403, `"reason":"Forbidden"`},
		{"not anybody", []string{"Test-User", "bob", "Impersonate-User", "alice"}, 403, `"kind":"Status"`},
		{"a group without a user", []string{"Test-User", "alice", "Impersonate-Group", "dev"}, 400, "without impersonating a user"},
		{"constrained", []string{"Test-User", "carol", "Impersonate-User", "bob", "Impersonate-Group", "dev"}, 200, `bob  ["dev" "system:authenticated"] map[], 0 fields left`},
		{"constrained to another verb", []string{"Test-User", "dave", "Impersonate-User", "bob"}, 403, `"code":403`},
		{"nobody to ask", []string{"Test-User", "broken", "Impersonate-User", "bob"}, 403, `authorizing: connection refused`},
		{"an underscore", []string{"Test-User", "alice", "Impersonate_User", "root"}, 200, `alice  ["system:authenticated"] map[], 0 fields left`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/apis/wardle.example.com/v1/namespaces/ns/flunders", nil)
			for i := 0; i < len(tt.head); i += 2 {
				r.Header.Add(tt.head[i], tt.head[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if b := strings.TrimSpace(w.Body.String()); w.Code != tt.code || !strings.Contains(b, tt.want) || tt.code == 200 && b != tt.want {
				t.Errorf("%d %s, want %d %s", w.Code, b, tt.code, tt.want)
			}
		})
	}
}
