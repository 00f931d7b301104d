package proxy

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Config is all that a Proxy is made of.
type Config struct {
	// Table returns the table in force. Required.
	Table func() *registry.Table
	// Authn says who is asking. Required.
	Authn *authn.Authenticator
	// Authz says whether they may, wherever the local apiserver does not. Required.
	Authz *authz.Authorizer
	// Backends carries requests to extension servers. Required.
	Backends *backend.Pools
	// Local carries requests to the local apiserver. Nil: there is none, and Pages answers what no APIService claims.
	Local *backend.Local
	// Documents answers /api, /apis, /apis/<group> and /openapi. Nil: they are the local apiserver's.
	Documents http.Handler
	// Ready returns what Documents would answer a GET, where that needs no work and no waiting. Nil from it, and a nil func: Documents is asked.
	Ready func(h *Head) *h2.Answer
	// Pages answers /fairlead/, apiregistration.k8s.io with the dir: registry, and without Local all that is nobody else's. Nil: 404.
	Pages http.Handler
	// Health wraps the local apiserver's /readyz and /healthz with the own readiness of this process; without Local, where it is given nil, it answers them
	// and /livez. Nil: they are relayed as they are.
	Health func(local http.Handler) http.Handler
	// MaxInFlight and MaxMutating bound the requests under way to all remotes together, long-running ones aside. Zero: no bound.
	MaxInFlight, MaxMutating int
	// ForwardRedirects passes a remote's redirects on (--aggregator-reject-forwarding-redirect=false). False: they are answered with 502, because a client that
	// follows one sends its credentials wherever the backend likes.
	ForwardRedirects bool
	// GoAwayChance is the probability with which an HTTP/2 client is asked to reconnect after a request. Zero: never.
	GoAwayChance float64
	// AccessLog gets one line per request. Nil: no access log.
	AccessLog *accesslog.Log
	// Audit gets an event per stage of the requests that its policy chooses. Nil: no audit log.
	Audit *audit.Log
	// Tracer makes a span of each request. Nil: no tracing, and a client's trace context is passed on as it is.
	Tracer *tracing.Tracer
	// Logger is for what goes wrong. Nil discards.
	Logger *slog.Logger
	// Metrics is where fairlead_request_* are registered. Nil: unregistered.
	Metrics prometheus.Registerer
}
