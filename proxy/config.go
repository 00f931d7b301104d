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

// Config configures a Proxy.
type Config struct {
	// Table returns the current table. Required.
	Table func() *registry.Table
	// Authn authenticates callers. Required.
	Authn *authn.Authenticator
	// Authz authorizes requests that the local apiserver does not authorize. Required.
	Authz *authz.Authorizer
	// Backends carries requests to extension servers. Required.
	Backends *backend.Pools
	// Local carries requests to the local apiserver. Nil means that there is none; Pages then
	// answers requests that no APIService claims.
	Local *backend.Local
	// CredentialRejected is called when the local apiserver rejects the credential with which this
	// process impersonates. It must not block. It may be nil.
	CredentialRejected func()
	// Documents answers /api, /apis, /apis/<group> and /openapi. If nil, the local apiserver
	// answers them.
	Documents http.Handler
	// Claimed reports whether Documents answers for a path, too, that the table leaves to the local
	// apiserver. It must not block. If nil, it does for none.
	Claimed func(path string) bool
	// Ready returns Documents' response to a GET if that is at hand: it must neither compute nor
	// block. If Ready or its result is nil, Documents answers.
	Ready func(h *Head) *h2.Answer
	// Pages answers /fairlead/, apiregistration.k8s.io with the dir: registry, and without Local
	// all requests that nothing else answers. Nil means 404.
	Pages http.Handler
	// Health combines the local apiserver's /readyz and /healthz with this process's readiness.
	// Without Local it gets nil, and answers these and /livez alone. If nil, they are forwarded
	// unchanged.
	Health func(local http.Handler) http.Handler
	// MaxInFlight and MaxMutating limit the requests in flight to all remotes together, without
	// long-running ones. Zero means no limit.
	MaxInFlight, MaxMutating int
	// MaxSessions limits the upgrades to all backends, including the local apiserver, and the
	// long-running requests to remotes over HTTP/1.1 together: each takes a descriptor for itself.
	// Zero means no limit.
	MaxSessions int
	// ForwardRedirects forwards a remote's redirects
	// (--aggregator-reject-forwarding-redirect=false). If false, they are answered with 502,
	// because a client that follows a redirect sends its credentials to any address that the
	// backend names.
	ForwardRedirects bool
	// GoAwayChance is the probability with which an HTTP/2 client is asked to reconnect after a
	// request. Zero means never.
	GoAwayChance float64
	// AllowedOrigins are regular expressions of origins whose pages may read answers (CORS). None
	// means no CORS.
	AllowedOrigins []string
	// HSTS has the directives of Strict-Transport-Security. None means that the field is not set.
	HSTS []string
	// AccessLog gets one line per request. Nil means no access log.
	AccessLog *accesslog.Log
	// Taps shows the requests of single users to operators. Nil means no taps.
	Taps *accesslog.Taps
	// Audit gets an event for each stage of the requests that its policy selects. Nil means no
	// audit log.
	Audit *audit.Log
	// Tracer makes a span of each request. Nil means no tracing; a client's trace context is then
	// forwarded unchanged.
	Tracer *tracing.Tracer
	// Logger logs failures. Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_request_*. Nil means unregistered.
	Metrics prometheus.Registerer
}
