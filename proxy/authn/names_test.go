package authn

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The target's names may change at run time. Until they are known, a client's X-Other-User may
// pass, so no user is asserted.
func TestTarget(t *testing.T) {
	user1, group1 := []string{"X-Remote-User"}, []string{"X-Remote-Group"}
	u := &identity{DefaultInfo: user.DefaultInfo{Name: "a", UID: "7", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}}
	for _, tt := range []struct {
		name  string
		names HeaderNames
		want  string
		err   string
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
			wrong := func(err error, want string) bool {
				return (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want)
			}
			now, known := &tt.names, true
			if _, err := New(Config{Target: func() (*HeaderNames, bool) { return now, known }}); wrong(err, tt.err) {
				t.Fatalf("New: %v, want %q", err, tt.err)
			}
			now, known = &HeaderNames{Username: user1, Group: group1}, false
			a := newAuthenticator(t, Config{Target: func() (*HeaderNames, bool) { return now, known }})
			if f, err := a.Assert(nil, u, PoolRemote); wrong(err, "not read yet") || len(f) > 0 {
				t.Errorf("asserted %v, %v before the names are known", f, err)
			}
			known = true
			must.Get(a.Assert(nil, u, PoolRemote))(t)
			if built := a.nameSet(); built != a.nameSet() {
				t.Error("the names are read for each request")
			}
			now = &tt.names
			fields, err := a.Assert(nil, u, PoolRemote)
			if wrong(err, tt.err) {
				t.Fatalf("Assert: %v, want %q", err, tt.err)
			}
			var names []string
			for _, f := range fields {
				names = append(names, f.Name)
			}
			check.Same(t, tt.want, strings.Join(names, " "), "names")
			for _, name := range slices.Concat(tt.names.Username, tt.names.UID, tt.names.Group) {
				if tt.err == "" && !a.Strip(name, PoolUnproven) {
					t.Errorf("%s is not stripped", name)
				}
			}
		})
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
