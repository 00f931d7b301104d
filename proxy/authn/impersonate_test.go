package authn

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// kubeAPIServer runs kube-apiserver's own filter on fields, for an account that may impersonate
// everybody.
func kubeAPIServer(t testing.TB) func([]hpack.HeaderField) (user.Info, *httptest.ResponseRecorder) {
	var served user.Info
	filter := impersonation.WithConstrainedImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		served, _ = apirequest.UserFrom(r.Context())
		if len(r.Header) != 1 {
			t.Errorf("the filter kept %v", r.Header)
		}
	}), authorizerfactory.NewAlwaysAllowAuthorizer(), serializer.NewCodecFactory(runtime.NewScheme()))
	return func(fields []hpack.HeaderField) (user.Info, *httptest.ResponseRecorder) {
		served = nil
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
		r.Header = toHTTP(fields)
		ctx := apirequest.WithUser(r.Context(), &user.DefaultInfo{Name: "system:serviceaccount:fairlead:fairlead"})
		ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Resource: "pods", Path: "/api/v1/pods"})
		w := httptest.NewRecorder()
		filter.ServeHTTP(w, r.WithContext(ctx))
		return served, w
	}
}

func newImpersonator(t testing.TB) *Authenticator {
	t.Helper()
	return newAuthenticator(t, Config{Impersonate: func() string { return "Bearer own" }})
}

// sameUser compares users, with groups as a set: system:authenticated comes back last.
func sameUser(meant, got user.Info) string {
	flat := func(u user.Info) user.DefaultInfo {
		groups := slices.DeleteFunc(slices.Clone(u.GetGroups()), func(g string) bool { return g == "" })
		slices.Sort(groups)
		extra := map[string][]string{}
		for k, v := range u.GetExtra() {
			if k = strings.ToLower(k); len(v) > 0 {
				extra[k] = append(extra[k], v...)
				slices.Sort(extra[k])
			}
		}
		return user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: slices.Compact(groups), Extra: extra}
	}
	return cmp.Diff(flat(meant), flat(got), cmpopts.EquateEmpty())
}

// kube-apiserver serves exactly the intended user: no group is gained, and groups that it adds
// itself are not sent.
func TestImpersonationArrives(t *testing.T) {
	a, served := newImpersonator(t), kubeAPIServer(t)
	const all, none = user.AllAuthenticated, user.AllUnauthenticated
	for _, tc := range []struct {
		name  string
		u     user.DefaultInfo
		spelt bool // system:authenticated is sent
		gains []string
	}{
		{"plain", user.DefaultInfo{Name: "alice", Groups: []string{all}}, false, nil},
		{"groups", user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"dev", all, "ops"}}, false, nil},
		{"extra", user.DefaultInfo{Name: "ünï", Groups: []string{all}, Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=1"}, "a b%/ü": {"1", "2"}, "none": nil}}, false, nil},
		{"ServiceAccount without its groups", user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{all, all}}, true, nil},
		{"ServiceAccount with an empty group", user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{all, ""}}, true, nil},
		{"ServiceAccount", user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a", all}}, false, nil},
		{"node without its group", user.DefaultInfo{Name: "system:node:n", Groups: []string{all}}, true, nil},
		{"both", user.DefaultInfo{Name: "alice", Groups: []string{all, none}}, true, nil},
		{"anonymous by name, and authenticated", user.DefaultInfo{Name: user.Anonymous, Groups: []string{"dev", all}}, true, []string{none}},
		{"anonymous by name", user.DefaultInfo{Name: user.Anonymous, Groups: []string{"dev"}}, false, []string{none}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fields := must.Get(a.Impersonation(nil, &tc.u))(t)
			for _, f := range fields {
				if !f.Sensitive {
					t.Errorf("%s may be indexed by HPACK", f.Name)
				}
			}
			if spelt := slices.Contains(toHTTP(fields)["Impersonate-Group"], all); spelt != tc.spelt {
				t.Errorf("system:authenticated was sent: %v", spelt)
			}
			check.Same(t, hpack.HeaderField{Name: "authorization", Value: "Bearer own", Sensitive: true}, fields[len(fields)-1], "the last field")
			got, w := served(fields)
			if got == nil {
				t.Fatalf("refused: %s", w.Body)
			}
			meant := tc.u
			meant.Groups = slices.Concat(meant.Groups, tc.gains)
			if diff := sameUser(&meant, got); diff != "" {
				t.Errorf("-meant +served:\n%s", diff)
			}
		})
	}
}

func TestImpersonationRefuses(t *testing.T) {
	dst := []hpack.HeaderField{{Name: "accept", Value: "*/*"}}
	for name, u := range map[string]user.Info{
		"no user": nil, "no name": &user.DefaultInfo{Groups: []string{"g"}}, "line": &user.DefaultInfo{Name: "a\nImpersonate-Group: system:masters"},
		"space": &user.DefaultInfo{Name: "admin "}, "group": &user.DefaultInfo{Name: "a", Groups: []string{" system:masters"}},
		"ours": &identity{DefaultInfo: user.DefaultInfo{Name: "a\x7f"}},
	} {
		for range 2 { // the second time cached
			if got, err := newImpersonator(t).Impersonation(dst, u); err == nil || len(got) != 1 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
	if got, err := newAuthenticator(t, Config{}).Impersonation(dst, &user.DefaultInfo{Name: "a"}); err == nil || len(got) != 1 {
		t.Errorf("without a credential: %v, %v", got, err)
	}
	certificate := newAuthenticator(t, Config{Impersonate: func() string { return "" }})
	if got, err := certificate.Impersonation(nil, &user.DefaultInfo{Name: "a"}); err != nil || len(got) != 1 {
		t.Errorf("with a certificate: %v, %v", got, err)
	}
}

func TestRefuses(t *testing.T) {
	a := newAuthenticator(t, Config{RefuseUsers: []string{"root", "system:serviceaccount:*"}, RefuseGroups: []string{"system:*", "wheel"}})
	for _, tc := range []struct {
		u     user.DefaultInfo
		named bool
		want  string
	}{
		{user.DefaultInfo{Name: "alice", Groups: []string{"dev", user.AllAuthenticated}}, false, ""},
		{user.DefaultInfo{Name: "alice", Groups: []string{user.AllUnauthenticated}}, true, ""},
		{user.DefaultInfo{Name: "root"}, false, "root"},
		{user.DefaultInfo{Name: "rooty"}, false, ""},
		{user.DefaultInfo{Name: "system:serviceaccount:a:b"}, false, "system:serviceaccount:a:b"},
		{user.DefaultInfo{Name: "system:serviceaccount:a:b"}, true, ""},
		{user.DefaultInfo{Name: "alice", Groups: []string{"dev", "system:masters"}}, false, "system:masters"},
		{user.DefaultInfo{Name: "alice", Groups: []string{"wheel"}}, true, "wheel"},
	} {
		if name, group := a.Refuses(&tc.u, tc.named); name+group != tc.want {
			t.Errorf("%v, named %v: %q %q, want %q", tc.u, tc.named, name, group, tc.want)
		}
	}
}

// The issuer of a token is determined once for a connection and configuration, off the loop for a
// long token. A token of our issuers is the only one that counts.
func TestIssued(t *testing.T) {
	var asked, generation uint64
	a := newAuthenticator(t, Config{
		ReviewGeneration: func() uint64 { return generation },
		Issued:           func(token string) bool { asked++; return strings.HasPrefix(token, "jwt.") },
	})
	long, longest := "jwt."+strings.Repeat("x", maxPeek), "jwt."+strings.Repeat("x", maxRemembered)
	conn := &Conn{}
	for _, tc := range []struct {
		name, token string
		wait        bool
		is, known   bool
		asked       uint64
	}{
		{"first", "jwt.a.b", false, true, true, 1},
		{"again", "jwt.a.b", false, true, true, 1},
		{"another", "alice-token", false, false, true, 3}, // both tokens are checked
		{"long", long, false, false, false, 3},
		{"long, with time", long, true, true, true, 4},
		{"long, again", long, false, true, true, 4},
		{"long, later", long, false, false, false, 4},
		{"longest", longest, true, true, true, 5},
		{"longest, which is not remembered", longest, true, true, true, 6},
	} {
		if tc.name == "long, later" {
			generation++
		}
		c := Credentials{Kind: KindToken, Token: newToken(tc.token), second: newToken("bob-token")}
		is, known := a.Issued(conn, &c, tc.wait)
		if is != tc.is || known != tc.known || asked != tc.asked || c.second.none() != tc.is {
			t.Errorf("%s: %v, known %v, asked %d times, alone %v", tc.name, is, known, asked, c.second.none())
		}
	}
	for _, tc := range []struct {
		second      string
		wait, known bool
		kind        Kind
	}{
		{"bob-token", false, true, KindToken},
		{"jwt.a.b", false, true, KindInvalid},
		{long, false, false, KindToken},
		{long, true, true, KindInvalid},
	} {
		c := Credentials{Kind: KindToken, Token: newToken("alice-token"), second: newToken(tc.second)}
		if is, known := a.Issued(nil, &c, tc.wait); is || known != tc.known || c.Kind != tc.kind || (c.Err != nil) != (tc.kind == KindInvalid) {
			t.Errorf("with a second token %.8s: %v, known %v, kind %d, %v", tc.second, is, known, c.Kind, c.Err)
		}
	}
	for _, kind := range []Kind{KindNone, KindCertificate, KindFrontProxy, KindInvalid} {
		if is, known := a.Issued(nil, &Credentials{Kind: kind, Token: newToken("jwt.a.b")}, false); is || !known {
			t.Errorf("kind %d: %v %v", kind, is, known)
		}
	}
}

// kube-apiserver serves the intended user, or nothing is sent; it never serves another user.
func FuzzImpersonation(f *testing.F) {
	f.Add("alice", "7", "dev", "scope", "all")
	f.Add("system:node:n", "", "", "a%2Fb/c ü%", "")
	f.Add("system:serviceaccount:a:b", "", "system:authenticated", "%", "\x80")
	f.Add("ünï ", "\x00", "a,b", "", "v")
	a := newImpersonator(f)
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		u := &user.DefaultInfo{Name: name, UID: uid, Groups: []string{group, user.AllAuthenticated}, Extra: map[string][]string{strings.ToLower(key): {value}}}
		fields, err := a.Impersonation(nil, u)
		if err != nil {
			if len(fields) > 0 {
				t.Errorf("%v was refused, and yet sent: %v", u, fields)
			}
			return
		}
		for _, f := range fields {
			if !httpguts.ValidHeaderFieldName(f.Name) || !httpguts.ValidHeaderFieldValue(f.Value) || f.Name != strings.ToLower(f.Name) {
				t.Fatalf("%q: %q cannot be sent", f.Name, f.Value)
			}
		}
		got, w := kubeAPIServer(t)(fields)
		if got == nil {
			t.Fatalf("%v was refused: %s", u, w.Body)
		}
		if name == user.Anonymous {
			u.Groups = append(u.Groups, user.AllUnauthenticated)
		}
		if diff := sameUser(u, got); diff != "" {
			t.Errorf("-meant +served:\n%s", diff)
		}
	})
}
