package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
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

// Each step makes one component from the flags and from what is already there. Siblings meet only here, as func fields.

func (d *door) findAPIServer(context.Context) (err error) {
	if d.o.alone() {
		return nil
	}
	if d.kube, d.servers, d.own, err = clientConfig(d.o.kubeconfig, d.o.localAPIServer); err != nil {
		return err
	}
	d.client = d.kube
	if d.o.kubeconfig != "" {
		d.follower, d.client, err = follow(d.kube, d.log)
	}
	return err
}

// refuseSelf finds a local apiserver that is this very process: every request would go round until the sockets are used up.
func (d *door) refuseSelf(ctx context.Context) error {
	own := d.operatorReach()
	for _, s := range d.servers {
		u, err := url.Parse(s)
		if err != nil {
			return cli.Usage(fmt.Errorf("local apiserver %q: %w", s, err))
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
		if err != nil {
			continue // it may come up later; what it resolves to is checked again with each dial
		}
		port, err := net.DefaultResolver.LookupPort(ctx, "tcp", portOf(u))
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

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return "443"
}

// makeReach makes the one dialer of backends.
func (d *door) makeReach(context.Context) (err error) {
	d.reach = d.o.reach()
	d.reach.Self = d.self
	if d.reach.Via, err = egressDialer(d.o.egress); err != nil {
		return cli.Usage(err)
	}
	return nil
}

// operatorReach are the rules of the local apiserver, whose address is in our own configuration.
func (d *door) operatorReach() *reach.Rules { return &reach.Rules{Operator: true, Self: d.self} }

// reach are the rules that the command line says.
func (o *options) reach() reach.Rules {
	// What is in the directory was put there by whoever runs this process.
	return reach.Rules{AllowLoopback: o.allowLoopback || o.directory() != ""}
}

func (d *door) makeTable(context.Context) (err error) {
	options := registry.Options{
		ClusterIPRouting: !d.o.endpointRouting, Reach: d.reach, AllowURLs: d.o.allowURLs, ProtectedGroups: protectedGroups(d.o.protectedGroups),
		Defaults: registry.Policy{RequestTimeout: d.o.requestTimeout, CAOverlap: orNone(d.o.caOverlap)},
	}
	d.registry, err = registry.New(registry.Config{Client: d.client, Directory: d.o.directory(), Options: options, Logger: d.log, Metrics: d.metrics})
	if err != nil {
		return err
	}
	return d.makeAPIServices()
}

// orNone is for durations whose zero means the default in a Config and none on the command line.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// protectedGroups reads the flag: nothing means the default, a dash means none.
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
		Signal: d.prober.Signal, Observe: d.prober.Observe, Hold: d.held.Hold, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil || d.o.alone() {
		return err
	}
	return d.makeLocal(identity)
}

// fixed is a table that nothing supersedes.
type fixed []*registry.Entry

func (f fixed) Entries() []*registry.Entry { return f }

func (f fixed) Superseded() <-chan struct{} { return nil }

// makeLocal makes the local apiserver's pools and a prober of its servers, of its own: it has no metrics, and the pools log what it finds.
func (d *door) makeLocal(identity func() <-chan struct{}) (err error) {
	const name = "local-apiserver" // as their prober has it
	dial := d.operatorReach().Dial
	d.local, err = backend.NewLocal(backend.LocalConfig{
		Servers: d.servers, TLS: d.localTLS, Guard: d.localGuard(), IdentityChanged: identity, Dial: dial,
		Signal: func(address string, err error) { d.localProber.Signal(name, address, err) }, Hold: d.held.Hold, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil {
		return err
	}
	d.localNews = make(chan struct{}, 1)
	servers := fixed{{Name: name, Backend: &registry.Backend{}, Endpoints: d.local.Servers()}}
	d.localProber, err = health.New(health.Config{
		Table: func() health.Table { return servers }, Report: d.localReport,
		TLS: func(string, *registry.Backend) (*tls.Config, error) { return d.localTLS(true) }, Dial: dial,
	})
	return err
}

func (d *door) localReport(r registry.Report) {
	d.local.Report(r.Address, r.Health, r.Message)
	latest.Wake(d.localNews)
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
	d.live = &health.Checks{Name: "livez", Logger: d.log}
	d.ready = &health.Checks{Name: "readyz", Draining: &d.draining, List: []health.Check{{Name: "table", Func: d.tableReady}, {Name: "discovery", Func: d.discoveryReady}}, Logger: d.log}
	if d.local != nil {
		d.ready.List = append(d.ready.List, health.Check{Name: "local-apiserver", Func: d.localReady})
	}
	if err := d.makeLogs(); err != nil {
		return err
	}
	tracer, err := d.makeTracer() //nolint:contextcheck // it outlives the start
	if err != nil {
		return err
	}
	d.proxy, err = proxy.New(proxy.Config{
		Table: d.registry.Table, Authn: who, Authz: may, Backends: d.backends, Local: d.local, MaxInFlight: d.o.maxInFlight,
		MaxMutating: d.o.maxMutating, GoAwayChance: d.o.goawayChance, ForwardRedirects: !d.o.rejectRedirects, Documents: http.HandlerFunc(d.serveDocument), Ready: d.readyDocument, Pages: d.ownPages(), Health: d.health,
		AccessLog: d.accessLog, Audit: d.audit, Tracer: tracer, Logger: d.log, Metrics: d.metrics,
	})
	return err
}

// targetNames are the header names that the cluster's servers trust, as its ConfigMap has them. The same names are the same pointer.
func (d *door) targetNames() *authn.HeaderNames {
	h := d.certs.Clients().Headers()
	if h == nil {
		return nil
	}
	if known := d.target.Load(); known != nil && known.of == h {
		return &known.names
	}
	fresh := &target{of: h, names: authn.HeaderNames{Username: h.Username, UID: h.UID, Group: h.Group, ExtraPrefix: h.ExtraPrefix}}
	d.target.Store(fresh)
	return &fresh.names
}

// target are the names of one reading of the ConfigMap.
type target struct {
	of    *certs.RequestHeaders
	names authn.HeaderNames
}

func headerNames(o *options) authn.HeaderNames {
	return authn.HeaderNames{Username: o.usernameHeaders, UID: o.uidHeaders, Group: o.groupHeaders, ExtraPrefix: o.extraHeaderPrefixes}
}

var errNoTable = errors.New("the table of APIServices is not complete")

func (d *door) tableReady(*http.Request) error {
	if !d.registry.Table().Complete() {
		return errNoTable
	}
	return nil
}

func (d *door) localReady(*http.Request) error { return d.local.Ready() }

// makePorts makes what serves. The engines have clients only where HTTP/2 is offered; the front door's has the connections to backends in any case.
func (d *door) makePorts(context.Context) error {
	d.frames = d.proxy.Frames(h2.Config{MaxStreams: uint32(d.o.streamsPerConn), Memory: d.held, Logger: d.log, Metrics: d.metrics}) //nolint:gosec,contextcheck // validated; connections end with the server, not with its making
	d.front = front.New(front.Config{Listener: d.frontListener, TLS: d.certs.TLS(), Handler: d.proxy, ConnContext: d.proxy.ConnContext, Frames: d.frames, Logger: d.log})

	own := adminPages(d.live, d.ready, d.metrics, d.pages, d.proxy.Guard)
	d.adminFrames = d.adminEngine(own) //nolint:contextcheck // as above
	d.admin = front.New(front.Config{Listener: d.adminListener, TLS: d.certs.TLS(), Handler: own, ConnContext: d.proxy.ConnContext, Frames: d.adminFrames, Logger: d.log})
	return nil
}

func filePair(cert, key string) certs.PairSource {
	return certs.PairSource{Cert: cert, Key: key}
}

// sniPairs reads certfile,keyfile[:name,…], as kube-apiserver does. validate has seen to their form.
func sniPairs(flags []string) []certs.PairSource {
	var pairs []certs.PairSource
	for _, f := range flags {
		files, names, _ := strings.Cut(f, ":")
		cert, key, _ := strings.Cut(files, ",")
		p := filePair(cert, key)
		if names != "" {
			p.Names = strings.Split(names, ",")
		}
		pairs = append(pairs, p)
	}
	return pairs
}

func tlsVersion(name string) uint16 {
	if name == "VersionTLS13" {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// cipherSuites are the IDs of the names; validate has seen to it that there are such.
func cipherSuites(names []string) []uint16 {
	var ids []uint16
	for _, s := range tls.CipherSuites() {
		for _, name := range names {
			if s.Name == name {
				ids = append(ids, s.ID)
			}
		}
	}
	return ids
}
