package authn

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever a head or a review says, reading the user and asserting it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	names := HeaderNames{Username: []string{remoteUser}, UID: []string{remoteUID}, Group: []string{remoteGroup}, ExtraPrefix: []string{remoteExtra}}
	a := must.Get(New(Config{RequestHeaders: names, Impersonate: func() string { return "Bearer own" }}))(t)
	assert := func(u user.Info) []any {
		to, err := a.Assert(nil, u, PoolRemote)
		local, err2 := a.Assert(nil, u, PoolImpersonate)
		name, group := a.Refuses(u, false)
		return []any{to, err, local, err2, name, group}
	}
	var rows []proportion.Row
	for _, s := range proportion.Heads() {
		rows = append(rows, proportion.Row{Name: "a head: " + s.Name, N: s.Small, Held: 30, Of: func(n int) (int, func() any) { // an identity has its fields rendered twice
			made := s.Of("/", n)
			h := append(Head{{Name: remoteUser, Value: "jane"}}, made.Fields...)
			return made.Size(), func() any {
				scan(h)
				token, err := protocolToken(h)
				cut := 0
				for _, f := range h {
					cut += len(CutProtocol(f.Value)) + len(newToken(bearerToken(f.Value)).payer())
				}
				return []any{token, err, cut, assert(names.user(h))}
			}
		}})
	}
	for name, of := range map[string]func(n int, u *user.DefaultInfo){
		"groups": func(n int, u *user.DefaultInfo) { u.Groups = strings.Split(strings.Repeat("g,", n)+"g", ",") },
		"one group again and again": func(n int, u *user.DefaultInfo) {
			u.Groups = strings.Split(strings.Repeat(user.AllAuthenticated+",", n)+"g", ",")
		},
		"extras": func(n int, u *user.DefaultInfo) {
			for i := range n {
				u.Extra[fmt.Sprintf("a/%d", i)] = []string{"v"}
			}
		},
		"values of an extra": func(n int, u *user.DefaultInfo) { u.Extra["a"] = strings.Split(strings.Repeat("v,", n), ",") },
		"a long name":        func(n int, u *user.DefaultInfo) { u.Name = strings.Repeat("n", n) },
	} {
		rows = append(rows, proportion.Row{Name: "a review: " + name, N: 500, Held: 60, Of: func(n int) (int, func() any) {
			u := &user.DefaultInfo{Name: "jane", Extra: map[string][]string{}}
			of(n, u)
			return 10 * n, func() any {
				id := authenticated(&authenticator.Response{User: u})
				return []any{id, assert(id)}
			}
		}})
	}
	rows = append(rows, proportion.Row{Name: "fields to strip", N: 500, Of: func(n int) (int, func() any) {
		fields := make([]hpack.HeaderField, n)
		for i := range fields {
			fields[i].Name = fmt.Sprintf("x_remote-%d", i)
		}
		return 12 * n, func() any {
			for _, f := range fields {
				a.Strip(f.Name, PoolRemote)
			}
			return nil
		}
	}})
	proportion.Check(t, rows...)
}
