package authn

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func toHTTP(fields []hpack.HeaderField) http.Header {
	h := http.Header{}
	for _, f := range fields {
		h.Add(f.Name, f.Value)
	}
	return h
}

// Headers are those of client-go's SetAuthProxyHeaders, and an extension server reads the same
// user.
func TestHeadersLikeUpstream(t *testing.T) {
	a := newAuthenticator(t, Config{})
	for _, u := range []*user.DefaultInfo{
		{Name: "a"},
		{Name: "system:serviceaccount:ns:n", UID: "7", Groups: []string{"g", "h", "g"}},
		{Name: "ünï", Groups: []string{"ö"}, Extra: map[string][]string{"k": {"ä", "b", "b"}, "none": nil, "empty": {""}}},
		{Name: "x", Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"X509SHA256=1"}, "UPPER%2f/ ü": {"1"}, "a\x00b": {"2"}, "": {"3"}, "a_b": {"4"}, "%": {"5"}}},
	} {
		want := httptest.NewRequest(http.MethodGet, "/", nil)
		transport.SetAuthProxyHeaders(want, u.Name, u.UID, u.Groups, u.Extra)
		fields := must.Get(a.Headers(nil, u))(t)
		check.Same(t, want.Header, toHTTP(fields), "%s", u.Name)
		for _, f := range fields {
			if !f.Sensitive || f.Name != strings.ToLower(f.Name) {
				t.Errorf("%+v", f)
			}
		}
	}
}

// A user is itself, and no other, even of the same name.
func TestIs(t *testing.T) {
	u, other := &identity{DefaultInfo: user.DefaultInfo{Name: "a"}}, &identity{DefaultInfo: user.DefaultInfo{Name: "a"}}
	if !u.Is(u) || u.Is(other) || u.Is(&u.DefaultInfo) {
		t.Errorf("itself %v, another %v, a copy %v", u.Is(u), u.Is(other), u.Is(&u.DefaultInfo))
	}
}

func TestHeadersRefuse(t *testing.T) {
	a := newAuthenticator(t, Config{})
	dst := []hpack.HeaderField{{Name: "accept", Value: "*/*"}}
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
		for range 2 { // the second time cached
			if got, err := a.Headers(dst, u); err == nil || len(got) != 1 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
}

func TestTarget(t *testing.T) {
	standard := HeaderNames{Username: []string{"X-Remote-User"}, Group: []string{"X-Remote-Group"}}
	u := &identity{DefaultInfo: user.DefaultInfo{Name: "a", UID: "7", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}}
	tests := []struct {
		name   string
		change func(n *HeaderNames)
		want   []string
		err    string
	}{
		{name: "only user and group", change: func(*HeaderNames) {}, want: []string{"x-remote-user", "x-remote-group"}},
		{name: "uid", change: func(n *HeaderNames) { n.UID = []string{"A", "x-remote-UID"} }, want: []string{"x-remote-user", "x-remote-uid", "x-remote-group"}},
		{name: "another uid", change: func(n *HeaderNames) { n.UID = []string{"X-Id", "Y-Id"} }, want: []string{"x-remote-user", "x-id", "x-remote-group"}},
		{name: "another extra", change: func(n *HeaderNames) { n.ExtraPrefix = []string{"X-More-"} }, want: []string{"x-remote-user", "x-remote-group", "x-more-k"}},
		{name: "no user", change: func(n *HeaderNames) { n.Username = []string{"X-User"} }, err: "X-Remote-User"},
		{name: "no group", change: func(n *HeaderNames) { n.Group = nil }, err: "X-Remote-Group"},
		{name: "empty", change: func(n *HeaderNames) { *n = HeaderNames{} }, err: "X-Remote-User"},
		{name: "empty prefix", change: func(n *HeaderNames) { n.ExtraPrefix = []string{" "} }, err: "not a header field name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := HeaderNames{Username: slices.Clone(standard.Username), Group: slices.Clone(standard.Group)}
			tt.change(&n)
			_, err := New(Config{Target: func() (*HeaderNames, bool) { return &n, true }})
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("New: %v, want %q", err, tt.err)
			}
			// The same holds if the names change at run time.
			now := &standard
			a := newAuthenticator(t, Config{Target: func() (*HeaderNames, bool) { return now, true }})
			must.Get(a.Headers(nil, u))(t)
			if built := a.nameSet(); built != a.nameSet() {
				t.Error("the names are read for each request")
			}
			now = &n
			fields, err := a.Headers(nil, u)
			if (err != nil) != (tt.err != "") {
				t.Fatalf("Headers: %v", err)
			}
			var names []string
			for _, f := range fields {
				names = append(names, f.Name)
			}
			check.Same(t, tt.want, names, "names")
			for _, list := range [][]string{n.Username, n.UID, n.Group} {
				for _, name := range list {
					if tt.err == "" && !a.Strip(name, PoolUnproven) {
						t.Errorf("%s is not stripped", name)
					}
				}
			}
		})
	}
}

// Until the target's names are known, a client's X-Other-User may pass, so no user is asserted.
func TestTargetIsNotKnownYet(t *testing.T) {
	names, known := &HeaderNames{}, false
	a := newAuthenticator(t, Config{Target: func() (*HeaderNames, bool) { return names, known }})
	u := &identity{DefaultInfo: user.DefaultInfo{Name: "a"}}
	if f, err := a.Headers(nil, u); err == nil || !strings.Contains(err.Error(), "not read yet") || len(f) > 0 {
		t.Errorf("asserted %v, %v", f, err)
	}
	names, known = &HeaderNames{Username: []string{"X-Other-User", "X-Remote-User"}, Group: []string{"X-Remote-Group"}}, true
	must.Get(a.Headers(nil, u))(t)
	if !a.Strip("x-other-user", PoolUnproven) {
		t.Error("X-Other-User is not stripped")
	}
}

func TestNewRefusesBadNames(t *testing.T) {
	for _, n := range []HeaderNames{
		{Username: []string{""}}, {Username: []string{"a b"}}, {Group: []string{"X-Remote-Group"}}, {Username: []string{"a"}, ExtraPrefix: []string{""}},
		{Username: []string{"a"}, UID: []string{"ü"}}, {Username: []string{"a"}, Group: []string{"a b"}},
	} {
		if _, err := New(Config{RequestHeaders: n}); err == nil {
			t.Errorf("%+v was accepted", n)
		}
	}
}

// Whatever a user's name, an extension server reads exactly that user, or the request is refused.
func FuzzHeaders(f *testing.F) {
	f.Add("alice", "7", "dev", "authentication.kubernetes.io/credential-id", "X509SHA256=ab")
	f.Add(" a", "\n", "", "%zz", "ü")
	f.Add("a", "", "b\r\nX-Remote-Group: system:masters", "K\x00", "\t")
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		a := newAuthenticator(t, Config{})
		u := &user.DefaultInfo{Name: name, UID: uid, Groups: []string{group}, Extra: map[string][]string{key: {value}}}
		fields, err := a.Headers(nil, u)
		if err != nil {
			return
		}
		reader := must.Get(headerrequest.New([]string{"X-Remote-User"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}))(t)
		// Real HTTP/1.1 trims and refuses values.
		var got user.Info
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if resp, ok, err := reader.AuthenticateRequest(r); ok && err == nil {
				got = resp.User
			}
		}))
		defer s.Close()
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil))(t)
		r.Header = toHTTP(fields)
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatalf("%q: %v", fields, err)
		}
		_ = resp.Body.Close()
		// Servers lower-case keys and omit empty groups.
		want := *u
		want.Extra = map[string][]string{strings.Map(lowerASCII, key): {value}}
		if group == "" {
			want.Groups = []string{}
		}
		check.Same(t, describe(&want), describe(got), "what was read")
	})
}

func lowerASCII(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		r += 'a' - 'A'
	}
	return r
}
