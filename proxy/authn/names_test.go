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
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The target's names may change at run time. Until they are known, a client's X-Other-User may
// pass, so no user is asserted.
func TestTarget(t *testing.T) {
	user1, group1 := []string{"X-Remote-User"}, []string{"X-Remote-Group"}
	u := &identity{DefaultInfo: user.DefaultInfo{Name: "a", UID: "7", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}}
	for _, tt := range []struct {
		name      string
		names     HeaderNames
		want, err string
	}{
		{name: "only user and group", names: HeaderNames{Username: user1, Group: group1}, want: "x-remote-user x-remote-group"},
		{name: "another user, too", names: HeaderNames{Username: []string{"X-Other-User", "X-Remote-User"}, Group: group1}, want: "x-remote-user x-remote-group"},
		{name: "uid", names: HeaderNames{Username: user1, Group: group1, UID: []string{"A", "x-remote-UID"}}, want: "x-remote-user x-remote-uid x-remote-group"},
		{name: "another uid", names: HeaderNames{Username: user1, Group: group1, UID: []string{"X-Id", "Y-Id"}}, want: "x-remote-user x-id x-remote-group"},
		{name: "another extra", names: HeaderNames{Username: user1, Group: group1, ExtraPrefix: []string{"X-More-"}}, want: "x-remote-user x-remote-group x-more-k"},
		{name: "no user", names: HeaderNames{Username: []string{"X-User"}, Group: group1}, err: "X-Remote-User"},
		{name: "no group", names: HeaderNames{Username: user1}, err: "X-Remote-Group"},
		{name: "empty", err: "X-Remote-User"},
		{name: "empty prefix", names: HeaderNames{Username: user1, Group: group1, ExtraPrefix: []string{" "}}, err: "not a header field name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now, known := &tt.names, true
			check.Fault(t, tt.err, check.Err(New(Config{Target: func() (*HeaderNames, bool) { return now, known }})), "New")
			now, known = &HeaderNames{Username: user1, Group: group1}, false
			a := newAuthenticator(t, Config{Target: func() (*HeaderNames, bool) { return now, known }})
			fields, err := a.Assert(nil, u, PoolRemote)
			check.Fault(t, "not read yet", err, "before the names are known")
			check.Same(t, 0, len(fields), "fields before the names are known")
			known = true
			must.Get(a.Assert(nil, u, PoolRemote))(t)
			built := a.nameSet()
			check.Same(t, true, built == a.nameSet(), "the names are not read for each request")
			now = &tt.names
			fields, err = a.Assert(nil, u, PoolRemote)
			check.Fault(t, tt.err, err, "Assert")
			names := ""
			for _, f := range fields {
				names += " " + f.Name
			}
			check.Same(t, tt.want, strings.TrimSpace(names), "names")
			for _, name := range slices.Concat(tt.names.Username, tt.names.UID, tt.names.Group, tt.names.ExtraPrefix) {
				check.Same(t, true, tt.err != "" || a.Strip(name, PoolUnproven), "%s is stripped", name)
			}
		})
	}
}

func TestNewRefusesBadNames(t *testing.T) {
	for _, n := range []HeaderNames{
		{Username: []string{""}}, {Username: []string{"a b"}}, {Group: []string{"X-Remote-Group"}}, {Username: []string{"a"}, ExtraPrefix: []string{""}},
		{Username: []string{"a"}, UID: []string{"ü"}}, {Username: []string{"a"}, Group: []string{"a b"}},
	} {
		check.Same(t, true, check.Err(New(Config{RequestHeaders: n})) != nil, "%+v is refused", n)
	}
}

// toHTTP converts fields, all of which can be sent, and none of which HPACK may index.
func toHTTP(t testing.TB, fields []hpack.HeaderField) http.Header {
	t.Helper()
	h := http.Header{}
	for _, f := range fields {
		check.Same(t, true, f.Sensitive && f.Name == strings.ToLower(f.Name) && httpguts.ValidHeaderFieldName(f.Name) && httpguts.ValidHeaderFieldValue(f.Value), "%+v can be sent", f)
		h.Add(f.Name, f.Value)
	}
	return h
}

// kubeAPIServer runs kube-apiserver's own filter on fields, for an account that may impersonate everybody.
func kubeAPIServer(t testing.TB) func([]hpack.HeaderField) (user.Info, *httptest.ResponseRecorder) {
	var served user.Info
	filter := impersonation.WithConstrainedImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		served, _ = apirequest.UserFrom(r.Context())
		check.Same(t, 1, len(r.Header), "fields that the filter keeps: %v", r.Header)
	}), authorizerfactory.NewAlwaysAllowAuthorizer(), serializer.NewCodecFactory(runtime.NewScheme()))
	return func(fields []hpack.HeaderField) (user.Info, *httptest.ResponseRecorder) {
		t.Helper()
		served = nil
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
		r.Header = toHTTP(t, fields)
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

// headersArrive checks that an extension server reads exactly a user from the fields of Headers,
// and that these are client-go's. It returns the error if the user is refused.
func headersArrive(t *testing.T, u *user.DefaultInfo) error {
	t.Helper()
	fields, err := newAuthenticator(t, Config{}).Assert(nil, u, PoolRemote)
	if err != nil {
		check.Same(t, 0, len(fields), "fields of a user that is refused")
		return err
	}
	upstream := httptest.NewRequest(http.MethodGet, "/", nil)
	groups := slices.DeleteFunc(slices.Clone(u.Groups), func(g string) bool { return g == "" }) // readers ignore them
	transport.SetAuthProxyHeaders(upstream, u.Name, u.UID, groups, u.Extra)
	check.Same(t, upstream.Header, toHTTP(t, fields), "fields")
	reader := must.Get(headerrequest.New([]string{"X-Remote-User"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}))(t)
	// Real HTTP/1.1 trims and refuses values.
	var got user.Info = &user.DefaultInfo{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if resp, ok, err := reader.AuthenticateRequest(r); ok && err == nil {
			got = resp.User
		}
	}))
	defer s.Close()
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil))(t)
	r.Header = upstream.Header
	must.Do(t, must.Get(s.Client().Do(r))(t).Body.Close())
	check.Same(t, "", sameUser(u, got), "-meant +read")
	return nil
}

// impersonationArrives checks that kube-apiserver serves exactly a user, who gains these groups. It
// returns the groups that are sent, or the error if the user is refused.
func impersonationArrives(t *testing.T, u *user.DefaultInfo, gains ...string) (groups []string, err error) {
	t.Helper()
	fields, err := newImpersonator(t).Assert(nil, u, PoolImpersonate)
	if err != nil {
		check.Same(t, 0, len(fields), "fields of a user that is refused")
		return nil, err
	}
	check.Same(t, hpack.HeaderField{Name: "authorization", Value: "Bearer own", Sensitive: true}, fields[len(fields)-1], "the last field")
	got, w := kubeAPIServer(t)(fields)
	must.Be(t, got != nil, "%v was refused: %s", u, w.Body)
	meant := *u
	meant.Groups = slices.Concat(meant.Groups, gains)
	check.Same(t, "", sameUser(&meant, got), "-meant +served")
	return toHTTP(t, fields)["Impersonate-Group"], nil
}

// No group is gained, and none is sent that kube-apiserver adds itself.
func TestUsersArrive(t *testing.T) {
	const all, none = user.AllAuthenticated, user.AllUnauthenticated
	for _, tc := range []struct {
		name  string
		u     user.DefaultInfo
		spelt bool // system:authenticated is sent
		gains []string
	}{
		{"plain", user.DefaultInfo{Name: "alice", Groups: []string{all}}, false, nil},
		{"groups", user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"g", all, "h", "g"}}, false, nil},
		{"extra", user.DefaultInfo{Name: "ünï", Groups: []string{"ö", all}, Extra: map[string][]string{"k": {"ä", "b", "b"}, "none": nil, "empty": {""}}}, false, nil},
		{"keys of an extra", user.DefaultInfo{Name: "x", Groups: []string{all}, Extra: map[string][]string{
			"authentication.kubernetes.io/credential-id": {"X509SHA256=1"}, "UPPER%2f/ ü": {"1"}, "a\x00b": {"2"}, "": {"3"}, "a_b": {"4"}, "%": {"5"}, "a b%/ü": {"1", "2"},
		}}, false, nil},
		{"ServiceAccount without its groups", user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{all, all}}, true, nil},
		{"ServiceAccount with an empty group", user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{all, ""}}, true, nil},
		{"ServiceAccount", user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a", all}}, false, nil},
		{"node without its group", user.DefaultInfo{Name: "system:node:n", Groups: []string{all}}, true, nil},
		{"both", user.DefaultInfo{Name: "alice", Groups: []string{all, none}}, true, nil},
		{"anonymous by name, and authenticated", user.DefaultInfo{Name: user.Anonymous, Groups: []string{"dev", all}}, true, []string{none}},
		{"anonymous by name", user.DefaultInfo{Name: user.Anonymous, Groups: []string{"dev"}}, false, []string{none}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.Do(t, headersArrive(t, &tc.u))
			check.Same(t, tc.spelt, slices.Contains(must.Get(impersonationArrives(t, &tc.u, tc.gains...))(t), all), "system:authenticated was sent")
		})
	}
}

// A user whose groups are not all passed on loses rights, and gains no group that kube-apiserver adds to who has none.
func TestGroupPrefixes(t *testing.T) {
	const all, none, accounts = user.AllAuthenticated, user.AllUnauthenticated, "system:serviceaccounts"
	a := newAuthenticator(t, Config{Impersonate: func() string { return "Bearer own" }, GroupPrefixes: []string{"team-", "b"}})
	for _, tc := range []struct {
		name         string
		groups, want []string
	}{
		{"alice", []string{"team-1", "myteam-2", "TEAM-3", "b", "bc", "a", "", all}, []string{"team-1", "b", "bc", all}},
		{"alice", []string{"a", all}, []string{all}},
		{"alice", []string{"a", none}, []string{none}},
		{"alice", []string{"a\n", "team-1", all}, []string{"team-1", all}},
		{user.Anonymous, []string{"a"}, []string{none}},
		{"system:serviceaccount:a:b", []string{"a", all}, []string{all}},
		{"system:serviceaccount:a:b", []string{accounts, "a", all}, []string{accounts, all}},
		{"system:node:n", []string{"a", user.NodesGroup, all}, []string{user.NodesGroup, all}},
	} {
		got, _ := kubeAPIServer(t)(must.Get(a.Assert(nil, &user.DefaultInfo{Name: tc.name, Groups: tc.groups}, PoolImpersonate))(t))
		check.Same(t, tc.want, got.GetGroups(), "groups of %s in %q at kube-apiserver", tc.name, tc.groups)
	}
	fields := must.Get(a.Assert(nil, &user.DefaultInfo{Name: "alice", Groups: []string{"a", "team-1", all}}, PoolRemote))(t)
	check.Same(t, []string{"a", "team-1", all}, toHTTP(t, fields)["X-Remote-Group"], "an extension server's")
}

// Whatever a user's name, an extension server reads exactly that user, or the request is refused.
func FuzzHeaders(f *testing.F) {
	f.Add("alice", "7", "dev", "authentication.kubernetes.io/credential-id", "X509SHA256=ab")
	f.Add(" a", "\n", "", "%zz", "ü")
	f.Add("a", "", "b\r\nX-Remote-Group: system:masters", "K\x00", "\t")
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		_ = headersArrive(t, &user.DefaultInfo{Name: name, UID: uid, Groups: []string{group}, Extra: map[string][]string{key: {value}}})
	})
}

// kube-apiserver serves the intended user, or nothing is sent; it never serves another user.
func FuzzImpersonation(f *testing.F) {
	f.Add("alice", "7", "dev", "scope", "all")
	f.Add("system:node:n", "", "", "a%2Fb/c ü%", "")
	f.Add("system:serviceaccount:a:b", "", "system:authenticated", "%", "\x80")
	f.Add("ünï ", "\x00", "a,b", "", "v")
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		u := &user.DefaultInfo{Name: name, UID: uid, Groups: []string{group, user.AllAuthenticated}, Extra: map[string][]string{key: {value}}}
		var gains []string
		if name == user.Anonymous {
			gains = []string{user.AllUnauthenticated}
		}
		_, _ = impersonationArrives(t, u, gains...)
	})
}

func TestUsersRefused(t *testing.T) {
	dst := []hpack.HeaderField{{Name: "accept", Value: "*/*"}}
	a := newImpersonator(t)
	for name, u := range map[string]user.Info{
		"no user":       nil,
		"no name":       &user.DefaultInfo{Groups: []string{"g"}},
		"line":          &user.DefaultInfo{Name: "a\nX-Remote-Group: system:masters"},
		"nul":           &user.DefaultInfo{Name: "a\x00"},
		"leading space": &user.DefaultInfo{Name: " admin"},
		"trailing tab":  &user.DefaultInfo{Name: "admin\t"},
		"delete":        &user.DefaultInfo{Name: "a\x7f"},
		"uid":           &user.DefaultInfo{Name: "a", UID: "b\r"},
		"group":         &user.DefaultInfo{Name: "a", Groups: []string{"ok", " system:masters"}},
		"extra":         &user.DefaultInfo{Name: "a", Extra: map[string][]string{"k": {"v\n"}}},
		"ours":          &identity{DefaultInfo: user.DefaultInfo{Name: "a ", Groups: []string{"g"}}},
	} {
		for _, pool := range []Pool{PoolRemote, PoolRemote, PoolImpersonate, PoolImpersonate} { // the second time cached
			got, err := a.Assert(dst, u, pool)
			check.Same(t, true, err != nil && len(got) == 1, "%s, pool %d: refused: %v, %v", name, pool, got, err)
		}
	}
	got, err := newAuthenticator(t, Config{}).Assert(dst, &user.DefaultInfo{Name: "a"}, PoolImpersonate)
	check.Same(t, true, err != nil && len(got) == 1, "refused without a credential: %v, %v", got, err)
	certificate := newAuthenticator(t, Config{Impersonate: func() string { return "" }})
	got, err = certificate.Assert(nil, &user.DefaultInfo{Name: "a"}, PoolImpersonate)
	check.Same(t, true, err == nil && len(got) == 1, "asserted with a certificate: %v, %v", got, err)
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
		name, group := a.Refuses(&tc.u, tc.named)
		check.Same(t, tc.want, name+group, "what is refused of %v, named %v", tc.u, tc.named)
	}
}
