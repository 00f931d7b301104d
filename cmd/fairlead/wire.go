package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn/tokens"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
)

// server is what serve runs. The fields are in the order in which build makes them.
type server struct {
	*process
	kube  *kube // nil means that there is no local apiserver
	ports ports

	registry    *registry.Registry
	apiServices *apiservices.Server // of apiregistration.k8s.io. Nil means that the local apiserver serves it
	trust       *trust.Trust
	certs       *certs.Store
	prober      *health.Prober
	backends    *backend.Pools
	merged

	checks
	entry *entrypoint.Publisher // nil without --publish-kubernetes-endpoints
	may   authorizer.Authorizer
	proxy *proxy.Proxy
	pages *pages.Pages

	front, admin *front.Port
}

// build makes all parts, each from those before it, and listens, but serves nothing yet. Packages
// that do not import each other are connected only here and in what it calls, by func fields.
func build(ctx context.Context, p *process) (_ *server, err error) {
	s := &server{process: p}
	defer func() {
		if err != nil {
			s.ports.close()
		}
	}()
	if s.kube, err = p.findKube(ctx); err != nil {
		return nil, err
	}
	if s.ports, err = p.listen(ctx); err != nil {
		return nil, err
	}
	backends, local, err := s.reach(ctx)
	if err != nil {
		return nil, err
	}
	tokens := p.makeTokens()
	for _, step := range []func() error{
		func() error { return s.makeTable(backends) }, //nolint:contextcheck // it sends no request yet
		s.makeTrust, func() error { s.makeBackends(backends, local); return nil },
		s.makeStatus, func() error { s.makeEntrypoint(); return errors.Join(s.makeAudit(), s.makeAccessLog()) },
		func() error { return s.makeProxy(tokens) }, //nolint:contextcheck // what it makes outlives the start
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	s.makePages()
	s.makePorts() //nolint:contextcheck // connections outlive the start
	return s, nil
}

// Table implements latest.Tables for parts that are made before the registry.
func (s *server) Table() *registry.Table { return s.registry.Table() }

func (s *server) makeTable(reach *reach.Rules) (err error) {
	options := s.o.TableOptions()
	options.Reach, options.Zone = *reach, s.o.zone
	options.Defaults.RequestTimeout, options.Defaults.CAOverlap = s.o.requestTimeout, zeroMeansNone(s.o.caOverlap)
	if err := s.makeAPIServices(&options); err != nil {
		return err
	}
	c := registry.Config{
		Directory: s.o.registry.dir, Cluster: s.o.registry.cluster, Policy: s.o.Policy, Options: options,
		Sinks: s.sinks,
	}
	if s.kube != nil {
		c.Client = s.kube.client
	}
	if s.o.registry.etcd != nil {
		c.APIServices, c.CacheFile = ownClient(s.apiServices), s.o.cacheFile
	}
	s.registry, err = registry.New(c)
	s.loops["table"] = s.registry.Run
	return err
}

// zeroMeansNone is for durations whose zero means the default in a Config, but none in a flag.
func zeroMeansNone(d time.Duration) time.Duration { return cmp.Or(d, -1) }

func (s *server) makeBackends(rules, local *reach.Rules) {
	s.prober = health.New(health.Config{
		Table:  func() latest.State[*registry.Entry] { return s.registry.Table() },
		Report: func(r registry.Report) { s.backends.Report(r); s.registry.Report(r) }, // known before it is available
		TLS:    s.trust.TLS, Dial: rules.Dial, MaxWatched: front.Descriptors(watchShare), Sinks: s.sinks,
	})
	s.backends = backend.New(backend.Config{
		Tables: s.registry, TLS: s.trust.TLS, Guard: s.trust.Guard, IdentityChanged: s.certs.ProxyClient().Changed,
		Dial: rules.Dial, Signal: s.prober.Signal, Observe: s.prober.Observe, Memory: s.held, Sinks: s.sinks,
	})
	s.loops["prober"], s.loops["backend pools"] = s.prober.Run, s.backends.Run
	if s.kube != nil {
		s.kube.connect(local, s.certs.ProxyClient())
	}
}

func (s *server) makeProxy(tokens *tokens.Tokens) error {
	s.makeDocuments()
	s.makeChecks(tokens)
	if s.kube == nil { // there are no TokenReviews, but JWTs, which may expire meanwhile: kube-apiserver caches them so
		s.o.authn.TokenTTL = min(s.o.authn.TokenTTL, 10*time.Second)
	}
	who, err := s.makeAuthn(tokens)
	if err != nil {
		return err
	}
	s.unfit, s.distrusted = who.Unfit, seldomLook(func(time.Time) error { return s.inCluster() })
	may, err := s.makeAuthz()
	if err != nil {
		return err
	}
	s.may = may.Upstream()
	s.taps.Draining = s.draining.Load
	tracer, err := s.makeTracer()
	if err != nil {
		return err
	}
	c := s.o.proxy
	c.Tables, c.Backends, c.Authn, c.Authz = s.registry, s.backends, who, may
	c.MaxSessions, c.ForwardRedirects = front.Descriptors(sessionShare), !s.o.rejectRedirects
	c.Documents, c.Pages = http.HandlerFunc(s.serveDocument), http.HandlerFunc(s.servePages)
	c.Claimed, c.Ready, c.Health, c.Behind = s.openapi.Claimed, s.rendered, s.health, s.behind
	c.AccessLog, c.Taps, c.Tracer, c.Sinks = s.accessLog, &s.taps, tracer, s.sinks
	c.Audit, c.AuditLocal = s.audit, s.o.audit.local
	if s.kube != nil {
		c.Local, c.CredentialRejected = s.kube.pools, s.kube.credential.renew
	}
	s.proxy, err = proxy.New(c)
	s.loops["request metrics"] = s.proxy.Run
	return err
}

// makePorts makes the servers of both ports. Engines have client connections only if HTTP/2 is
// offered; the front door's engine always has the connections to backends.
func (s *server) makePorts() {
	own := s.adminPages()
	frames := s.proxy.Frames(h2.Config{
		MaxStreams: uint32(s.o.streamsPerConn), //nolint:gosec // validated
		Memory:     s.held, Logger: s.log, Metrics: s.metrics,
	})
	adminFrames := s.adminEngine(own)
	c := front.Config{
		Listener: s.ports.front, TLS: s.certs.TLS(), Handler: s.proxy, ConnContext: s.proxy.ConnContext,
		Frames: frames, Balancers: s.o.balancers, Memory: s.held, Logger: s.log,
	}
	s.front = front.New(c)
	c.Listener, c.Handler, c.Frames, c.Balancers = s.ports.admin, own, adminFrames, nil
	s.admin = front.New(c)
	s.loops["HTTP/2"], s.loops["admin HTTP/2"], s.loops["readiness"] = frames.Run, adminFrames.Run, s.followReadiness
}
