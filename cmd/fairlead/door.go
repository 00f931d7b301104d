package main

import (
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/status"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn/tokens"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory/apiservices"
	"github.com/fairlead-proxy/fairlead/registry/reach"
)

// door is everything that serve runs.
type door struct {
	o       *options
	log     *slog.Logger
	metrics *prometheus.Registry
	memory  *memory // nil: the operator has set GOGC
	// kube is how the local apiserver is reached as the kubeconfig said at the start, client the same for our own clients, which follow it.
	kube, client *rest.Config
	follower     *follower // nil: the pod's own configuration, whose files client-go follows
	servers      []string
	own          *apiservers // where Fairlead's own clients go. Nil: to the kubeconfig's server

	frontListener, adminListener *front.Listener
	self                         []netip.AddrPort
	// reach is how backends are dialled, by everything that dials them.
	reach reach.Rules

	registry *registry.Registry
	// apiServices serves apiregistration.k8s.io. Nil: the local apiserver does.
	apiServices *apiservices.Server

	certs       *certs.Store
	trust       *trust.Trust
	prober      *health.Prober
	localProber *health.Prober // nil: there is no local apiserver
	localNews   chan struct{}  // one slot: it has reported something
	status      *status.Writer // nil: no --write-status
	events      *status.Events // nil: no --emit-events
	entry       *publisher     // nil: no --publish-kubernetes-endpoints
	backends    *backend.Pools
	local       *backend.Local // nil: there is none
	tokens      *tokens.Tokens
	proxy       *proxy.Proxy
	documents   merged
	frames      *h2.Server
	// adminFrames is the admin port's.
	adminFrames *h2.Server
	held        *hold.Bound // by connections
	target      atomic.Pointer[target]
	draining    health.Draining
	live        *health.Checks
	ready       *health.Checks
	records

	pages        *pages.Pages
	front, admin *front.Port
}
