package openapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A group-version keeps its v2 paths if its APIService gets the trust of another of the same
// Service, even if the backend fails just then.
func TestJoinKeepsSpec(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.Set("home", serving())
		s.host("server", define("a.example.com/v1", "as"), define("b.example.com/v1", "bs"))
		other := s.Input.APIServices["v1.b.example.com"].DeepCopy()
		joined := s.Input.APIServices["v1.b.example.com"]
		other.Annotations = map[string]string{"fairlead.dev/ping-timeout": "7s"}
		s.Input.APIServices[other.Name] = other
		s.Build()
		s.settle()
		if a, b := s.described("a.example.com/v1"), s.described("b.example.com/v1"); a != "as" || b != "bs" {
			t.Fatalf("before: %v, %v", a, b)
		}
		s.Set("server", nil)
		s.Input.APIServices[other.Name] = joined
		s.Build()
		s.pass(time.Minute)
		if a, b := s.described("a.example.com/v1"), s.described("b.example.com/v1"); a != "as" || b != "bs" {
			t.Errorf("after: %v, %v", a, b)
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
