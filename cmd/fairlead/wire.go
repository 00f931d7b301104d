package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/reach"
)

// Each step makes one component from the flags and the components before it. Packages that do not
// import each other are connected only here, by func fields.

func (d *door) findAPIServer(ctx context.Context) (err error) {
	if d.o.alone() {
		return nil
	}
	if d.kube, d.servers, d.own, err = clientConfig(d.o.kubeconfig, d.o.localAPIServer); err != nil {
		return err
	}
	d.client = d.kube
	if d.o.impersonates() {
		if d.credential, err = newCredential(ctx, d.kube, d.log); err != nil {
			return err
		}
		d.loop("credential", d.credential.Run)
	}
	if d.o.kubeconfig != "" {
		d.follower, d.client, err = follow(d.kube, d.log)
	}
	return err
}

// refuseSelf returns an error if a local apiserver is this very process: every request would loop
// until the sockets are used up.
func (d *door) refuseSelf(ctx context.Context) error {
	own := d.operatorReach()
	for _, s := range d.servers {
		u, err := url.Parse(s)
		if err != nil {
			return cli.Usage(fmt.Errorf("local apiserver %q: %w", s, err))
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
		if err != nil {
			continue // it may resolve later; each dial checks the address again
		}
		port, err := net.DefaultResolver.LookupPort(ctx, "tcp", cmp.Or(u.Port(), "443"))
		if err != nil {
			return cli.Usage(fmt.Errorf("local apiserver %q: %w", s, err))
		}
		for _, ip := range ips {
			if own.Refusal(ip.String(), int32(port)) != "" { //nolint:gosec // LookupPort returns at most 65535
				return cli.Usage(fmt.Errorf("local apiserver %q is this Fairlead itself: name kube-apiserver's own address with --local-apiserver", s))
			}
		}
	}
	return nil
}

// makeReach makes the only dialer of backends.
func (d *door) makeReach(context.Context) (err error) {
	d.reach = d.o.reach()
	d.reach.Self = d.self
	if d.reach.Via, err = egressDialer(d.o.egress); err != nil {
		return cli.Usage(err)
	}
	return nil
}

// operatorReach returns the rules for the local apiserver, whose address is in our own
// configuration.
func (d *door) operatorReach() *reach.Rules { return &reach.Rules{Operator: true, Self: d.self} }

// reach returns the rules of the command line.
func (o *options) reach() reach.Rules {
	// The operator of this process writes the directory, but not what is in etcd or in a cluster.
	r := &o.registry
	return reach.Rules{AllowLoopback: o.allowLoopback || r.dir != "" && r.etcd == nil && !r.cluster}
}

func (d *door) makeTable(context.Context) (err error) {
	options := registry.Options{
		ClusterIPRouting: !d.o.endpointRouting, Reach: d.reach, AllowURLs: d.o.allowURLs, ProtectedGroups: protectedGroups(d.o.protectedGroups),
		Defaults: registry.Policy{RequestTimeout: d.o.requestTimeout, CAOverlap: orNone(d.o.caOverlap)},
	}
	if err := d.makeAPIServices(&options); err != nil { //nolint:contextcheck // it sends no request yet
		return err
	}
	c := registry.Config{Client: d.client, Directory: d.o.registry.dir, Cluster: d.o.registry.cluster, Options: options, Logger: d.log, Metrics: d.metrics}
	if d.o.registry.etcd != nil {
		c.APIServices, c.CacheFile = d.ownClient(), d.o.etcd.cacheFile
	}
	d.registry, err = registry.New(c)
	d.loop("table", d.registry.Run)
	return err
}

// orNone is for durations whose zero means the default in a Config but none on the command line.
func orNone(d time.Duration) time.Duration { return cmp.Or(d, -1) }

// protectedGroups reads the flag: no value means the default, "-" means none.
func protectedGroups(flag []string) []string {
	if len(flag) == 1 && flag[0] == "-" {
		return []string{}
	}
	return flag
}

func (d *door) makeBackends(context.Context) (err error) {
	d.prober, err = health.New(health.Config{Table: func() health.Table { return d.registry.Table() }, Report: d.registry.Report, TLS: d.trust.TLS, Dial: d.reach.Dial, Logger: d.log, Metrics: d.metrics})
	if err != nil {
		return err
	}
	identity := d.certs.ProxyClient().Changed
	d.backends, err = backend.New(backend.Config{
		Table: d.registry.Table, TLS: d.trust.TLS, Guard: d.trust.Guard, IdentityChanged: identity, Dial: d.reach.Dial,
		Signal: d.prober.Signal, Observe: d.prober.Observe, Logger: d.log, Metrics: d.metrics,
	})
	d.loop("prober", d.prober.Run)
	d.loop("backend pools", d.backends.Run)
	if err != nil || d.o.alone() {
		return err
	}
	return d.makeLocal(identity)
}

// fixed is a table that nothing supersedes.
type fixed []*registry.Entry

func (f fixed) Entries() []*registry.Entry { return f }

func (f fixed) Superseded() <-chan struct{} { return nil }

// makeLocal makes the local apiserver's pools and a separate prober of its servers. That prober has
// no metrics, and the pools log its results.
func (d *door) makeLocal(identity func() <-chan struct{}) (err error) {
	const name = localName
	dial := d.operatorReach().Dial
	pool, credential := "", (func() string)(nil)
	if d.credential != nil {
		pool, credential, identity = "local-impersonate", d.credential.Authorization, d.credential.Changed
	}
	guard := d.trust.LocalGuard // closes connections whose CA has left the bundle
	if d.kube.Insecure {
		guard = nil
	}
	d.local, err = backend.NewLocal(backend.LocalConfig{
		Servers: d.servers, TLS: d.localTLS, Name: pool, Guard: guard, IdentityChanged: identity, Dial: dial,
		Signal: func(address string, err error) { d.localProber.Signal(name, address, err) }, Hold: d.held.Hold, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil {
		return err
	}
	d.localNews = make(chan struct{}, 1)
	servers := fixed{{Name: name, Backend: &registry.Backend{}, Endpoints: d.local.Servers()}}
	d.localProber, err = health.New(health.Config{
		Table: func() health.Table { return servers }, Report: func(r registry.Report) {
			d.local.Report(r.Address, r.Health, r.Message)
			latest.Wake(d.localNews)
		},
		TLS: func(string, *registry.Backend) (*tls.Config, error) { return d.localTLS(true) }, Dial: dial, Authorization: credential,
	})
	d.loop("local apiserver's pools", d.local.Run)
	d.loop("local apiserver's prober", d.localProber.Run)
	return err
}

func (d *door) makeProxy(context.Context) error {
	who, err := d.makeAuthn()
	if err != nil {
		return err
	}
	may, err := d.makeAuthz()
	if err != nil {
		return err
	}
	d.may = may.Upstream()
	d.live = &health.Checks{Name: "livez", Logger: d.log}
	d.ready = &health.Checks{Name: "readyz", Draining: &d.draining, Logger: d.log, List: []health.Check{
		{Name: "table", Func: tableReady(d.registry.Table)},
		{Name: "discovery", Func: func(*http.Request) error { return d.documents.discovery.Ready() }},
		{Name: "authentication-configmap", Func: d.namesReady},
	}}
	if d.local != nil {
		d.ready.List = append(d.ready.List, health.Check{
			Name: "local-apiserver", Func: func(*http.Request) error { return d.local.Ready() },
		})
	}
	if err := errors.Join(d.makeAccessLog(), d.makeAudit()); err != nil {
		return err
	}
	d.taps.Draining = d.draining.Active
	tracer, err := d.makeTracer() //nolint:contextcheck // it outlives the start
	if err != nil {
		return err
	}
	d.proxy, err = proxy.New(proxy.Config{
		Table: d.registry.Table, Authn: who, Authz: may, Backends: d.backends, Local: d.local, MaxInFlight: d.o.maxInFlight,
		MaxSessions: front.Descriptors(sessionShare), MaxMutating: d.o.maxMutating, GoAwayChance: d.o.goawayChance, ForwardRedirects: !d.o.rejectRedirects, Documents: http.HandlerFunc(d.serveDocument), Claimed: d.documents.openapi.Claimed, Ready: d.readyDocument, Pages: http.HandlerFunc(d.servePages), Health: d.health,
		CredentialRejected: func() { d.credential.renew() }, AccessLog: d.accessLog, Taps: &d.taps, Audit: d.audit, Tracer: tracer, Logger: d.log, Metrics: d.metrics,
		AllowedOrigins: d.o.browsers.origins, HSTS: d.o.browsers.hsts,
	})
	d.loop("request metrics", d.proxy.Run)
	return err
}

// targetNames returns the header names that the cluster's servers trust, from the cluster's
// ConfigMap. Equal names are the same pointer.
func (d *door) targetNames() (names *authn.HeaderNames, known bool) {
	h, known := d.certs.Clients().Headers()
	// An impersonated cluster may trust no front proxy, and its extension servers still trust ours.
	if h == nil || d.credential != nil && len(h.Username) == 0 {
		return nil, known
	}
	if last := d.target.Load(); last != nil && last.of == h {
		return &last.names, known
	}
	fresh := &target{of: h, names: authn.HeaderNames{Username: h.Username, UID: h.UID, Group: h.Group, ExtraPrefix: h.ExtraPrefix}}
	d.target.Store(fresh)
	return &fresh.names, known
}

// target holds the header names of one version of the ConfigMap.
type target struct {
	of    *certs.RequestHeaders
	names authn.HeaderNames
}

// makePorts makes the servers of both ports. Engines have client connections only if HTTP/2 is
// offered; the front door's engine always has the connections to backends.
func (d *door) makePorts(context.Context) error {
	d.frames = d.proxy.Frames(h2.Config{MaxStreams: uint32(d.o.streamsPerConn), Memory: d.held, Logger: d.log, Metrics: d.metrics}) //nolint:gosec,contextcheck // validated; connections outlive the start
	d.front = front.New(front.Config{Listener: d.frontListener, TLS: d.certs.TLS(), Handler: d.proxy, ConnContext: d.proxy.ConnContext, Frames: d.frames, Memory: d.held, Logger: d.log})

	own := adminPages(d.live, d.ready, d.gathered, d.pages, d.proxy.Guard)
	d.adminFrames = d.adminEngine(own) //nolint:contextcheck // as above
	d.admin = front.New(front.Config{Listener: d.adminListener, TLS: d.certs.TLS(), Handler: own, ConnContext: d.proxy.ConnContext, Frames: d.adminFrames, Memory: d.held, Logger: d.log})
	d.loop("HTTP/2", d.frames.Run)
	d.loop("admin HTTP/2", d.adminFrames.Run)
	d.loop("readiness", d.followReadiness)
	return nil
}
