package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
)

// kube is the local apiserver, or several: how Fairlead itself and its clients' requests get there.
type kube struct {
	*process
	// config is the kubeconfig's at the start. Our own clients use client, which follows the kubeconfig.
	config, client *rest.Config
	api            *kubernetes.Clientset // of client
	clock          needs.Clock           // compared by what api is answered
	servers        []string
	found          needs.Outcome // of looking for others by --local-apiservers-from
	own            *apiservers   // used by Fairlead's own clients. Nil means the kubeconfig's server
	follower       *follower     // nil means the pod's own configuration, whose files client-go follows
	credential     *credential   // impersonates callers. Nil means no impersonation
	lookUp         func(ctx context.Context, network, host string) ([]net.IP, error)

	trust  *trust.Trust
	pair   *certs.Pair // that is presented to it for users
	pools  *backend.Local
	prober *health.Prober
}

// findKube reads how to reach the local apiserver. Nil means that there is none.
func (p *process) findKube(ctx context.Context) (k *kube, err error) {
	if p.o.alone() {
		return nil, nil //nolint:nilnil // as documented
	}
	k = &kube{process: p, lookUp: net.DefaultResolver.LookupIP}
	k.config, k.servers, k.own, err = clientConfig(p.o.kubeconfig, p.o.localAPIServer, p.o.serversFrom != "")
	if err != nil {
		return nil, err
	}
	if k.own != nil {
		k.own.first = p.o.preference == "first"
	}
	k.client = k.config
	if p.o.impersonates() {
		if k.credential, err = newCredential(ctx, k.config, p.log); err != nil {
			return nil, err
		}
		p.loops["credential"] = k.credential.Run
	}
	if p.o.kubeconfig != "" {
		if k.follower, k.client, err = follow(k.config, p.log); err != nil {
			return nil, err
		}
	}
	c := rest.CopyConfig(k.client)
	c.Wrap(k.clock.Wrap)
	c.Wrap(authz.Evaluated)
	c.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, but old clients read them
	if k.api, err = kubernetes.NewForConfig(c); err != nil {
		return nil, fmt.Errorf("making client of the local apiserver: %w", err)
	}
	p.files = k.followed()
	return k, nil
}

// refuseSelf returns an error if a local apiserver is this very process: requests would loop until sockets are used up.
func (k *kube) refuseSelf(ctx context.Context, own *reach.Rules) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // without DNS each name takes up to a minute
	defer cancel()
	for _, s := range k.servers {
		host, port, _ := net.SplitHostPort(s)  // addressOf has made it
		n, _ := strconv.ParseInt(port, 10, 32) // of url.Parse: digits
		ips, _ := k.lookUp(ctx, "ip", host)    // it may resolve later; each dial checks the address again
		for _, ip := range ips {
			if own.Refusal(ip.String(), int32(n)) != "" {
				return cli.Usage(fmt.Errorf("local apiserver %q is this Fairlead itself: "+
					"name kube-apiserver's own address with --local-apiserver", s))
			}
		}
	}
	return nil
}

// tls makes the TLS configuration of the pools: the kubeconfig's CA without its credentials. With X-Remote-* it
// presents our proxy client certificate; with impersonation the kubeconfig's own, if there is one.
func (k *kube) tls(withCertificate bool) (*tls.Config, error) {
	tc := k.trust.LocalTLS()
	if withCertificate {
		tc.GetClientCertificate = k.pair.GetClientCertificate
	}
	tc.ServerName = k.config.ServerName
	if k.config.Insecure { // insecure-skip-tls-verify, which is discouraged, works as in kubectl
		tc.InsecureSkipVerify, tc.VerifyConnection = true, nil
	}
	return tc, nil
}

func (k *kube) followed() []certs.File {
	named := caFile(k.config)
	inUse := named // by the kubeconfig in force; one goroutine calls every Take
	files := []certs.File{{Use: "local-apiserver-ca", Path: named, Take: func(data []byte) error {
		if inUse != named {
			return nil
		}
		return k.trust.LocalBundle(data)
	}}}
	take := func([]byte) error { // not called without a kubeconfig: then there is no follower
		c, err := k.follower.reload(k.o.kubeconfig)
		if err == nil && k.credential != nil {
			err = k.credential.take(c)
		}
		if err != nil || named != "" && inUse == named && caFile(c) == named {
			return err
		}
		if err = k.takeCA(c, named); err == nil {
			inUse = caFile(c)
		}
		return err
	}
	return append(files, certs.File{Use: "kubeconfig", Path: k.o.kubeconfig, Held: k.follower.certificate, Take: take})
}

type probed struct {
	entry      registry.Entry
	superseded <-chan struct{}
}

func (p *probed) Servers() []*registry.Entry  { return []*registry.Entry{&p.entry} }
func (p *probed) Superseded() <-chan struct{} { return p.superseded }

// connect makes the pools, and a separate prober of the servers, without metrics; the pools log its results.
func (k *kube) connect(rules *reach.Rules, proxyClient *certs.Pair) {
	pool, credential := "", (func() string)(nil)
	if k.pair = proxyClient; k.credential != nil {
		pool, credential, k.pair = "local-impersonate", k.credential.Authorization, k.credential.pair
	}
	guard := k.trust.LocalGuard // closes connections whose CA has left the bundle
	if k.config.Insecure {
		guard = nil
	}
	k.pools = backend.NewLocal(backend.LocalConfig{
		Servers: k.servers, First: k.o.preference == "first", TLS: k.tls, Name: pool, Finds: k.o.serversFrom != "",
		IdentityChanged: k.pair.Changed, Dial: rules.Dial, Memory: k.held, Sinks: k.sinks, Guard: guard,
		Signal: func(address string, err error) { k.prober.Signal(pages.LocalName, address, err) },
		Renew:  func() { k.prober.Renew(pages.LocalName) },
	})
	as := &registry.Backend{}
	k.prober = health.New(health.Config{
		Table: func() latest.State[*registry.Entry] {
			p := &probed{entry: registry.Entry{Name: pages.LocalName, Backend: as}}
			p.entry.Endpoints, p.superseded = k.pools.Servers()
			return p
		},
		Report: func(r registry.Report) {
			k.pools.Report(r)
			latest.Wake(k.news)
		},
		TLS:  func(string, *registry.Backend) (*tls.Config, error) { return k.tls(true) },
		Dial: rules.Dial, Authorization: credential,
	})
	k.loops["local apiserver's pools"], k.loops["local apiserver's prober"] = k.pools.Run, k.prober.Run
	if k.o.serversFrom == "" {
		return
	}
	find := sliced(k.api.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault), rules.Self)
	if k.o.serversFrom == fromLease {
		find = k.leased(k.api.CoordinationV1().Leases(metav1.NamespaceSystem))
	}
	k.loops["local apiservers"] = func(ctx context.Context) error {
		for follow, again := k.follows(find), time.Duration(0); latest.Sleep(ctx, again); {
			again = follow(ctx)
		}
		return ctx.Err()
	}
}

func (k *kube) list() (list []registry.Endpoint) {
	if k != nil {
		list, _ = k.pools.Servers()
	}
	return list
}

// limits says at which limits requests to local apiservers are refused: strangers', and that of sessions.
func (k *kube) limits() (lines []string) {
	for p := backend.PoolCertificate; k != nil && p < backend.PoolHealth; p++ {
		for _, l := range k.pools.Upstream(p).Limits() {
			lines = append(lines, "requests to local apiservers: "+l.String())
		}
	}
	return lines
}
