package openapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// A group-version keeps its v2 paths if its APIService gets the trust of another of the same
// Service, even if the backend fails just then.
func TestJoinKeepsSpec(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set("home", serving())
		s.host("server", define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))
		join := s.Part("v1.b.example.com")
		s.settle()
		if a, b := s.described("a.example.com/v1"), s.described("b.example.com/v1"); a != "as" || b != "bs" {
			t.Fatalf("before: %v, %v", a, b)
		}
		s.Set("server", nil)
		join()
		s.pass(time.Minute)
		if a, b := s.described("a.example.com/v1"), s.described("b.example.com/v1"); a != "as" || b != "bs" {
			t.Errorf("after: %v, %v", a, b)
		}
	})
}

// A group-version whose APIService leaves another of the same Service and comes back keeps what the
// backend said meanwhile, even if the backend fails just then.
func TestJoinKeepsNewest(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set("home", serving())
		s.host("server", define("a.example.com/v1", "as"), define("b.example.com/v1", "old"))
		s.settle()
		s.Set("server", serving(define("a.example.com/v1", "as"), define("b.example.com/v1", "new")))
		join := s.Part("v1.b.example.com")
		s.pass(2 * time.Minute)
		title := func() any {
			var doc struct{ Info object }
			must.Do(t, json.Unmarshal(s.get("/openapi/v3/apis/b.example.com/v1", nil).Body.Bytes(), &doc))
			return doc.Info["title"]
		}
		if v2, v3 := s.described("b.example.com/v1"), title(); v2 != "new" || v3 != "new" {
			t.Fatalf("before: %v, %v", v2, v3)
		}
		s.Set("server", nil)
		join()
		s.pass(time.Minute)
		if v2, v3 := s.described("b.example.com/v1"), title(); v2 != "new" || v3 != "new" {
			t.Errorf("after: %v, %v", v2, v3)
		}
	})
}

// A group-version that is unavailable keeps its v2 paths when another of its backend is asked for.
func TestUnavailableKeepsSpec(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set("home", serving())
		s.host("server", define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))
		s.settle()
		e := s.Table().Entries()[1]
		s.Build(registry.Report{
			Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address,
			Health: registry.Unhealthy, Reason: registry.ReasonFailedDiscoveryCheck, Message: "no",
		})
		s.pass(10 * time.Minute)
		if a, b := s.described("a.example.com/v1"), s.described("b.example.com/v1"); a != "as" || b != "bs" {
			t.Errorf("after: %v, %v", a, b)
		}
	})
}

// A converted document ends if its backend has lost the paths while the group-version was
// unavailable, although the paths of the other one are the same.
func TestUnavailableLosesConverted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		a, b := define("a.example.com/v1", "as"), define("b.example.com/v1", "bs")
		v2Only := func(kinds ...kind) http.HandlerFunc {
			return only("/openapi/v3", saying(http.StatusNotFound, ""), serving(kinds...))
		}
		s.Set("home", serving())
		s.host("server", a, b)
		s.Set("server", v2Only(a, b))
		s.settle()
		e := s.Table().Entries()[1]
		report := registry.Report{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}
		served := func() bool { _, ok := s.index()["apis/b.example.com/v1"]; return ok }
		if !served() {
			t.Fatalf("before: %v", keys(s.index()))
		}
		away := report
		away.Health, away.Reason, away.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "no"
		s.Build(away)
		s.pass(time.Minute)
		s.Set("server", v2Only(a))
		s.pass(2 * time.Minute)
		if !served() {
			t.Errorf("unavailable: %v", keys(s.index()))
		}
		s.Build(report)
		s.pass(2 * time.Minute)
		if served() {
			t.Errorf("after: %v", keys(s.index()))
		}
	})
}

// Joined states have the documents of the later answer. Of two at one time, those of the state that
// asks count, and a later answer without a document removes it.
func TestJoinByTime(t *testing.T) {
	gv := schema.GroupVersion{Group: "a.example.com", Version: "v1"}
	o := newStage(t).o
	old, late := o.newDocument(nil, []byte("old")), o.newDocument(nil, []byte("new"))
	for _, tt := range []struct {
		name       string
		own        *document
		former     *document
		at, before int64
		want       *document
	}{
		{"former later", old, late, 1, 2, late},
		{"former earlier", late, old, 2, 1, late},
		{"at one time", late, old, 1, 1, late},
		{"only former", nil, late, 0, 1, late},
		{"gone meanwhile", old, nil, 1, 2, nil},
	} {
		one := func(d *document, at int64) *state {
			return &state{versions: map[schema.GroupVersion]version{gv: {v3: d, v3At: time.Unix(at, 0)}}}
		}
		got := join(one(tt.own, tt.at), one(tt.former, tt.before)).versions[gv]
		if got.v3 != tt.want || got.v3At != time.Unix(max(tt.at, tt.before), 0) {
			t.Errorf("%s: %v of %v", tt.name, got.v3, got.v3At)
		}
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
		s.pass(2 * time.Minute)
		if unchanged == 0 || s.described("b.example.com/v1") != nil {
			t.Errorf("one group-version: %d times unchanged, and the other is %v", unchanged, s.described("b.example.com/v1"))
		}
		s.Claim("b.example.com/v1", "server", 100, 10)
		s.Build()
		s.pass(time.Minute)
		if a, b := s.described("a.example.com/v1"), s.described("b.example.com/v1"); a != "as" || b != "bs" {
			t.Errorf("both: %v, %v", a, b)
		}
	})
}

// During a rollout, the index of a new endpoint leads to the document of an old one: the new one is
// seen with the next poll. A document that the index still has is not requested again.
func TestRollout(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		const path = "/openapi/v3/apis/a.example.com/v1"
		was, is := serving(define("a.example.com/v1", "old")), serving(define("a.example.com/v1", "new"))
		s.Set(scene.Home, serving())
		s.Claim("a.example.com/v1", "a", 100, 10)
		s.Set("a", was)
		s.settle()
		s.Set("a", only(path, was, is))
		s.pass(time.Minute)
		s.Set("a", is)
		s.pass(time.Minute)
		if body := s.get(path, nil).Body.String(); !strings.Contains(body, `"new"`) {
			t.Errorf("after the rollout: %s", body)
		}
		s.Questions("a")
		s.pass(10 * time.Minute)
		if asked := s.Questions("a"); len(asked) == 0 || slices.Contains(asked, path) {
			t.Errorf("without a change it is asked for %v", asked)
		}
	})
}
