package pages

import (
	"context"
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
)

// A request for the local apiserver is forwarded even if none is healthy, and the explanation says
// why it fails.
func TestExplainDeadLocalAPIServer(t *testing.T) {
	s := newStand(t)
	s.cfg.Explain = func(_ context.Context, _ *proxy.Head, u user.Info) (proxy.Decision, error) {
		return proxy.Decision{Action: proxy.ToLocal, User: u}, nil
	}
	healthy := registry.Endpoint{Address: "10.0.0.1:6443", Health: registry.Healthy}
	dead := registry.Endpoint{Address: "10.0.0.2:6443", Health: registry.Unhealthy, Message: "dial tcp: connection refused"}
	listens := advice.For("connection refused")
	for _, tt := range []struct {
		name          string
		servers       []registry.Endpoint
		cause, advice string
	}{
		{"healthy", []registry.Endpoint{healthy}, "", ""},
		{"one of two", []registry.Endpoint{healthy, dead}, "1 of 2 local apiservers are unhealthy and get no requests: dial tcp: connection refused", listens},
		{"all", []registry.Endpoint{dead, dead}, "no local apiserver is healthy: dial tcp: connection refused", listens},
		{"not probed yet", []registry.Endpoint{{Address: "10.0.0.1:6443"}}, "", ""},
	} {
		s.cfg.LocalServers = func() []registry.Endpoint { return tt.servers }
		x := s.explain(t.Context(), http.MethodGet, "/api/v1/pods", &user.DefaultInfo{Name: "alice"})
		if x.Destination != "local" || x.Cause != tt.cause || x.Advice != tt.advice {
			t.Errorf("%s: %s, cause %q, advice %q; want %q, %q", tt.name, x.Destination, x.Cause, x.Advice, tt.cause, tt.advice)
		}
	}
}
