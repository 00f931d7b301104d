package discovery

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A group-version whose APIService gets the trust of another of the same Service keeps its
// resources, even if the backend fails just then.
func TestJoinKeepsResources(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.alone = true
		s.Claim("a.example.com/v1", "server", 100, 10)
		s.Claim("b.example.com/v1", "server", 100, 10)
		other := s.Input.APIServices["v1.b.example.com"].DeepCopy()
		joined := s.Input.APIServices["v1.b.example.com"]
		other.Annotations = map[string]string{"fairlead.dev/ping-timeout": "7s"}
		s.Input.APIServices[other.Name] = other
		s.Build()
		s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs")))
		s.open(Config{})
		s.report("v1.a.example.com", registry.Healthy)
		s.report("v1.b.example.com", registry.Healthy)
		s.pass(5 * time.Second)
		get := func() string {
			return s.get("/apis", http.Header{"Accept": {aggregatedJSON}}).Body.String()
		}
		if body := get(); strings.Contains(body, "Stale") || !strings.Contains(body, `"bs"`) {
			t.Fatalf("before: %s", body)
		}
		s.Set("server", nil)
		s.Input.APIServices[other.Name] = joined
		s.Build()
		s.pass(time.Second)
		if body := get(); strings.Contains(body, "Stale") || !strings.Contains(body, `"bs"`) {
			t.Errorf("after: %s", body)
		}
	})
}

// A group-version whose APIService leaves another of the same Service and comes back keeps what the
// backend said meanwhile, even if the backend fails just then.
func TestJoinKeepsNewest(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.alone = true
		s.Claim("a.example.com/v1", "server", 100, 10)
		s.Claim("b.example.com/v1", "server", 100, 10)
		s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs")))
		s.open(Config{})
		s.report("v1.a.example.com", registry.Healthy)
		s.report("v1.b.example.com", registry.Healthy)
		s.pass(5 * time.Second)
		joined := s.Input.APIServices["v1.b.example.com"]
		other := joined.DeepCopy()
		other.Annotations = map[string]string{"fairlead.dev/ping-timeout": "7s"}
		s.Input.APIServices[other.Name] = other
		s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs,news")))
		s.Build()
		s.report("v1.b.example.com", registry.Healthy)
		s.pass(2 * time.Minute)
		get := func() string {
			return s.get("/apis", http.Header{"Accept": {aggregatedJSON}}).Body.String()
		}
		if body := get(); strings.Contains(body, "Stale") || !strings.Contains(body, `"news"`) {
			t.Fatalf("before: %s", body)
		}
		s.Set("server", nil)
		s.Input.APIServices[other.Name] = joined
		s.Build()
		s.pass(time.Second)
		if body := get(); !strings.Contains(body, `"news"`) {
			t.Errorf("after: %s", body)
		}
	})
}

// A group-version that was left out of a response, because it was unavailable then, is not
// confirmed by a 304 to that response's tag.
func TestTagOfOthersConfirmsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.alone = true
		s.Claim("a.example.com/v1", "server", 100, 10)
		s.Claim("b.example.com/v1", "server", 100, 10)
		s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs")))
		s.open(Config{})
		s.report("v1.a.example.com", registry.Healthy)
		s.report("v1.b.example.com", registry.Healthy)
		s.pass(5 * time.Second)
		// The server restarts with another version of b, and is found healthy one group-version
		// after the other.
		s.report("v1.a.example.com", registry.Unhealthy)
		s.report("v1.b.example.com", registry.Unhealthy)
		s.pass(time.Second)
		s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs,news")))
		s.report("v1.a.example.com", registry.Healthy)
		s.pass(time.Second)
		s.report("v1.b.example.com", registry.Healthy)
		s.pass(10 * time.Minute)
		if body := s.get("/apis", http.Header{"Accept": {aggregatedJSON}}).Body.String(); !strings.Contains(body, `"news"`) {
			t.Errorf("ten minutes later: %s", body)
		}
	})
}
