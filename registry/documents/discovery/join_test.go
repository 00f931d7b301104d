package discovery

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// claimTwo claims a and b for one server, which serves them.
func (s *stage) claimTwo() {
	s.alone = true
	s.Claim("a.example.com/v1", "server", 100, 10)
	s.Claim("b.example.com/v1", "server", 100, 10)
	s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs")))
}

// openTwo waits until both are healthy and known.
func (s *stage) openTwo() {
	s.open(Config{})
	s.report("v1.a.example.com", registry.Healthy)
	s.report("v1.b.example.com", registry.Healthy)
	s.pass(5 * time.Second)
}

// has fails the test unless the aggregated discovery has a resource, and is not Stale.
func (s *stage) has(t *testing.T, when, resource string) {
	t.Helper()
	body := s.get("/apis", http.Header{"Accept": {aggregatedJSON}}).Body.String()
	if strings.Contains(body, "Stale") || !strings.Contains(body, `"`+resource+`"`) {
		t.Fatalf("%s: %s", when, body)
	}
}

// keeps has b join a's backend while the server fails, and checks that a resource stays.
func (s *stage) keeps(t *testing.T, resource string, join func()) {
	t.Helper()
	s.has(t, "before", resource)
	s.Set("server", nil)
	join()
	s.pass(time.Second)
	s.has(t, "after", resource)
}

// A group-version whose APIService gets the trust of another of the same Service keeps its
// resources, even if the backend fails just then.
func TestJoinKeepsResources(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.claimTwo()
		join := s.Part("v1.b.example.com")
		s.openTwo()
		s.keeps(t, "bs", join)
	})
}

// A group-version whose APIService leaves another of the same Service and comes back keeps what the
// backend said meanwhile, even if the backend fails just then.
func TestJoinKeepsNewest(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.claimTwo()
		s.openTwo()
		s.Set("server", serving(listOf("a.example.com/v1=as", "b.example.com/v1=bs,news")))
		join := s.Part("v1.b.example.com")
		s.report("v1.b.example.com", registry.Healthy)
		s.pass(2 * time.Minute)
		s.keeps(t, "news", join)
	})
}

// A group-version that was left out of a response, because it was unavailable then, is not
// confirmed by a 304 to that response's tag.
func TestTagOfOthersConfirmsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		s.claimTwo()
		s.openTwo()
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
		s.has(t, "ten minutes later", "news")
	})
}
