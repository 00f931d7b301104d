package main

import (
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn/tokens"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
	"github.com/fairlead-proxy/fairlead/registry/reach"
)

// door is everything that serve runs.
type door struct {
	o       *options
	log     *slog.Logger
	metrics *prometheus.Registry
	// gathered is what /metrics shows.
	gathered prometheus.Gatherers
	loops    loops // what serve runs; steps add to it
	// kube is the local apiserver's configuration as the kubeconfig had it at the start. Our own
	// clients use client, which follows the kubeconfig.
	kube, client *rest.Config
	follower     *follower   // nil means the pod's own configuration, whose files client-go follows
	credential   *credential // impersonates callers. Nil means no impersonation
	servers      []string
	own          *apiservers // used by Fairlead's own clients. Nil means the kubeconfig's server

	frontListener, adminListener *front.Listener
	self                         []netip.AddrPort
	// reach dials backends, for every component that does so.
	reach reach.Rules

	registry *registry.Registry
	// apiServices serves apiregistration.k8s.io. Nil means the local apiserver does.
	apiServices *apiservices.Server
	may         authorizer.Authorizer

	certs       *certs.Store
	trust       *trust.Trust
	prober      *health.Prober
	localProber *health.Prober        // nil means no local apiserver
	localNews   chan struct{}         // one slot: localProber has reported something
	entry       *entrypoint.Publisher // nil without --publish-kubernetes-endpoints
	backends    *backend.Pools
	local       *backend.Local // nil means no local apiserver
	tokens      *tokens.Tokens
	proxy       *proxy.Proxy
	documents   merged
	frames      *h2.Server
	adminFrames *h2.Server  // of the admin port
	held        *hold.Bound // bytes held by connections
	target      atomic.Pointer[target]
	draining    health.Draining
	live        *health.Checks
	ready       *health.Checks
	records

	pages        *pages.Pages
	front, admin *front.Port
}
