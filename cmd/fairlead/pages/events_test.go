package pages

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestEvents(t *testing.T) {
	s := newStand(t)
	resp := must.Get(s.http.Client().Get(s.http.URL + "/fairlead/events"))(t)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("Content-Type %q", got)
	}
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		t.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return ""
	}
	first := next()
	s.write(t, "new.yaml", manifest("new.example.com", ""))
	if second := next(); second == first {
		t.Errorf("generation %s twice", second)
	}
	s.draining.Store(true)
	for lines.Scan() { // the test's deadline bounds this
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream did not end cleanly: %v", err)
	}
}

func TestEventsAreBounded(t *testing.T) {
	s := newStand(t)
	for i := range maxSubscribers {
		if _, ok := s.subscribers.Take(bound.Source{User: fmt.Sprint(i % 4)}, 1, maxSubscribers); !ok {
			t.Fatalf("stream %d is refused", i)
		}
	}
	if resp, _ := s.get(t, "/events"); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	check.Same(t, maxSubscribers, s.subscribers.Held(), "subscribers after a refusal")
}

// One user, or one address, leaves streams of events to others.
func TestEventsAreShared(t *testing.T) {
	s := newStand(t)
	for name, source := range map[string]bound.Source{"ann": {User: "ann"}, user.Anonymous: {Address: "192.0.2.1"}, "": {Address: "192.0.2.1"}} {
		held, ok := s.subscribers.Take(source, maxSubscribers/4, maxSubscribers)
		status := func(name string) int {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a stream ends at once
			if name != "" {
				ctx = request.WithUser(ctx, &user.DefaultInfo{Name: name})
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", nil))
			return w.Code
		}
		if got := status(name); !ok || got != http.StatusTooManyRequests {
			t.Errorf("%q with a quarter of the streams: %d", name, got)
		}
		if got := status("bob"); got != http.StatusOK {
			t.Errorf("bob beside %q: %d", name, got)
		}
		held.Leave()
	}
}
