package openapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Joined states have the documents of the later answer. Of two at one time, those of the state that
// asks count, and a later answer without a document removes it.
func TestJoinByTime(t *testing.T) {
	gv := schema.GroupVersion{Group: "a.example.com", Version: "v1"}
	o := newStage(t).o
	old, late := o.newDocument(gv, nil, []byte("old")), o.newDocument(gv, nil, []byte("new"))
	one := func(d *document, at int64) *state {
		return &state{versions: map[schema.GroupVersion]version{gv: {v3: d, at: time.Unix(at, 0)}}}
	}
	for _, tt := range []struct {
		name              string
		own, former, want *document
		at, before        int64
	}{
		{"former later", old, late, late, 1, 2},
		{"former earlier", late, old, late, 2, 1},
		{"at one time", late, old, late, 1, 1},
		{"only former", nil, late, late, 0, 1},
		{"gone meanwhile", old, nil, nil, 1, 2},
	} {
		got := join(one(tt.own, tt.at), one(tt.former, tt.before)).versions[gv]
		check.Same(t, true, got.v3 == tt.want && got.at.Equal(time.Unix(max(tt.at, tt.before), 0)), "%s: %v of %v", tt.name, got.v3, got.at)
	}
}

// A backend's v2 document is sent again only if it has changed, or if there is a new group-version,
// without which the known one was filtered.
func TestAskedByTag(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set("home", serving())
		s.host("server", define("a.example.com/v1", "as"))
		unchanged := 0
		answer := serving(define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))
		s.Set("server", only("/openapi/v2", func(w http.ResponseWriter, r *http.Request) {
			answer(w, r)
			if r.Header.Get("If-None-Match") != "" {
				unchanged++
			}
		}, answer))
		s.settle()
		s.Pass(2 * time.Minute)
		check.Same(t, true, unchanged != 0 && !strings.Contains(s.show(), "b.example.com"), "one group-version: %d times unchanged, and %s", unchanged, s.show())
		s.Claim("b.example.com/v1", "server", 100, 10)
		s.Build()
		s.Pass(time.Minute)
		check.Same(t, true, strings.Contains(s.show(), "v2 def.a.example.com.v1: as\nv2 def.b.example.com.v1: bs\n"), "both: %s", s.show())
	})
}

// each is a Config.Each of several local apiservers.
func each(servers ...string) func(ctx context.Context, f func(context.Context, string)) error {
	return func(ctx context.Context, f func(context.Context, string)) error {
		var running sync.WaitGroup
		for _, name := range servers {
			running.Go(func() { f(ctx, name) })
		}
		running.Wait()
		return ctx.Err()
	}
}

// Of equal local apiservers always the same one's document counts: nothing is merged anew for another's. Each time a
// kube-apiserver is asked, it has in its index one of several extension servers' documents of /version, by chance.
func TestEqualServers(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.cfg.Each = each("one", "two")
		server := only("/version", saying(http.StatusOK, `{"gitVersion":"v1.37.2"}`), serving(define("apps/v1", "own")))
		var first *packed
		s.make()
		for turn := range 16 {
			for i, name := range []string{"one", "two"} {
				index := fmt.Sprintf(`{"paths":{"version":{"serverRelativeURL":"/openapi/v3/version?hash=%d"}}}`, (turn+i)%2)
				s.Set(name, only("/openapi/v3", saying(http.StatusOK, index), server))
			}
			if first == nil {
				s.settle()
			}
			s.Pass(10 * time.Second)
			local, _ := s.o.together(s.Table())
			first = cmp.Or(first, local.spec)
			check.Same(t, true, local.spec != nil && local.spec == first, "the same document")
		}
	})
	of := func(text string) *inputs { return &inputs{local: pack([]byte(text))} }
	got := [3]bool{same(of("a"), of("a")), same(of("a"), of("b")), same(of("a"), &inputs{})}
	check.Same(t, [3]bool{true, false, false}, got, "which is that of another with the same content, as while the first is away")
}

// The index is that of the newest local apiserver that answers: a document of one that is away would be 503, though
// another one has its own.
func TestNewestAway(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		var has map[schema.GroupVersionResource][]string
		s.cfg.Only = func(_ string, _ []string, by map[schema.GroupVersionResource][]string) { has = by }
		servers := map[string]string{"old": "v1.36.3", "new": "v1.37.2"}
		s.cfg.Each = each("old", "new")
		for name, release := range servers {
			says := saying(http.StatusOK, fmt.Sprintf(`{"gitVersion":%q}`, release))
			kinds := []kind{define("apps/v1", name), define(name+".example.com/v1", "own"), define("unclaimed."+name+".example.com/v1", "own")}
			s.Set(name, only("/version", says, serving(kinds...)))
			s.Claim(kinds[1].gv, "", 1000, 100)
		}
		s.make()
		s.settle()
		document := schema.GroupVersionResource{Resource: "/openapi/v3/apis/apps/v1"}
		check.Same(t, []string{"new"}, has[document], "whose document it is")
		s.Set("new", nil)
		s.Pass(10 * time.Second)
		check.Same(t, []string{"old"}, has[document], "whose it is while the newest is away")
		for _, want := range []bool{true, false} {
			index := s.Get("/openapi/v3", nil).Body.String()
			got := strings.Contains(index, "apis/new.example.com/v1")
			check.Same(t, want, got, "the index has what the newest alone has, until its APIService is deleted")
			check.Same(t, true, strings.Contains(index, "apis/unclaimed.new.example.com/v1"), "and what has none, as with a directory")
			delete(s.Input.APIServices, "v1.new.example.com")
			s.Build()
			s.Pass(time.Second)
		}
	})
}

// What a backend has said of a group-version is forgotten once no APIService names that.
func TestForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.host("server", define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))
		known := &state{}
		for _, want := range []int{2, 1} {
			next, _ := must.Get2(s.o.ask(t.Context(), known, s.Table().Entries()))(t)
			check.Same(t, want, len(next.versions), "group-versions")
			known = next
			delete(s.Input.APIServices, "v1.b.example.com")
			s.Build()
		}
	})
}

// A union is no larger than one server's document may be, and made once.
func TestUnionIsBounded(t *testing.T) {
	o, gv := newStage(t).o, schema.GroupVersion{Group: "a.example.com", Version: "v1"}
	var of []*document
	for i := range 3 {
		of = append(of, o.newDocument(gv, nil, fmt.Appendf(nil, `{"openapi":"3.0.0","paths":{"/%d":{"description":"%s"}}}`, i, bytes.Repeat([]byte("a"), maxDocument*2/5))))
	}
	d := o.united(gv, of)
	for i, want := range []bool{true, true, false} {
		check.Same(t, want, bytes.Contains(d.json.open(), fmt.Appendf(nil, `"/%d"`, i)), "the document of server %d is in the union", i)
	}
	check.Same(t, [3]bool{true, true, true}, [3]bool{o.united(gv, of) == d, o.united(gv, of[1:2]) == of[1], o.united(gv, nil) == nil},
		"the union of the same, of one and of none is the same, that one and none")
}
