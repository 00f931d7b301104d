package pages

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestEvents(t *testing.T) {
	s := newStand(t)
	server := httptest.NewServer(s)
	defer server.Close()
	resp := must.Get(server.Client().Get(server.URL + "/fairlead/events"))(t)
	defer resp.Body.Close()
	check.Same(t, "text/event-stream", resp.Header.Get("Content-Type"), "Content-Type")
	lines := bufio.NewScanner(resp.Body)
	next := func() (data string) {
		t.Helper()
		for found := false; !found; data, found = strings.CutPrefix(lines.Text(), "data: ") {
			must.Be(t, lines.Scan(), "the stream has ended: %v", lines.Err())
		}
		return data
	}
	first := next()
	s.write(t, "new", "")
	second := next()
	check.Same(t, true, second != first, "generation %s twice", second)
	s.draining.Store(true)
	for lines.Scan() { // the test's deadline bounds this
	}
	check.Fault(t, "", lines.Err(), "the end of the stream")
}

// Streams of events are bounded, and one user, or one address, leaves some to others.
func TestEventsAreShared(t *testing.T) {
	s := newStand(t)
	ask := func(name string) *httptest.ResponseRecorder {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a stream ends at once
		if name != "" {
			ctx = request.WithUser(ctx, &user.DefaultInfo{Name: name})
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", nil))
		return w
	}
	for name, source := range map[string]bound.Source{"ann": {User: "ann"}, user.Anonymous: {Address: "192.0.2.1"}, "": {Address: "192.0.2.1"}} {
		held, ok := s.subscribers.Take(source, maxSubscribers/4, maxSubscribers)
		check.Same(t, []any{true, http.StatusTooManyRequests, http.StatusOK}, []any{ok, ask(name).Code, ask("bob").Code}, "%q with a quarter of the streams, and bob", name)
		held.Leave()
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		if _, ok := s.subscribers.Take(bound.Source{User: name}, maxSubscribers/4, maxSubscribers); !ok {
			t.Fatalf("a quarter of the streams is refused to %s", name)
		}
	}
	if w := ask("bob"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	check.Same(t, maxSubscribers, s.subscribers.Held(), "subscribers after a refusal")
}
