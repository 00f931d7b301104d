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
