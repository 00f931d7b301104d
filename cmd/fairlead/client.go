package main

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// A dead connection is found within a read idle and a ping timeout, so soon that a waiting review
// can be repeated within 10 s. With client-go's 30 s and 15 s all reviews of 45 s would fail.
const ownReadIdle, ownPing = "2", "5"

// pingOften sets these times. client-go takes them from the environment, which an operator may set.
func pingOften() {
	times := map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": ownReadIdle, "HTTP2_PING_TIMEOUT_SECONDS": ownPing}
	for name, seconds := range times {
		_ = os.Setenv(name, cmp.Or(os.Getenv(name), seconds)) // it fails only for names that are not possible
	}
}

// clientConfig returns how Fairlead itself talks to the local apiserver, and the addresses of the servers. Only those,
// and with follows those that follow, are ever dialled. own chooses among them; nil: only the kubeconfig's.
func clientConfig(kubeconfig string, servers []string, follows bool) (
	c *rest.Config, addresses []string, own *apiservers, err error) {
	if kubeconfig == "" { // a server never reads a home directory
		if c, err = rest.InClusterConfig(); err != nil {
			err = fmt.Errorf("--kubeconfig is required outside a pod: %w", err)
		}
	} else if c, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		err = fmt.Errorf("--kubeconfig: %w", err)
	}
	if err != nil {
		return nil, nil, nil, cli.Usage(err)
	}
	pingOften()
	c.UserAgent = "fairlead/" + version
	c.Proxy = http.ProxyURL(nil) // none, whatever HTTPS_PROXY and proxy-url say: what is forwarded goes by none
	c.QPS = -1                   // no limit: reviews have their own, which protect known callers; watches are few
	chooses := follows || len(servers) > 0
	if len(servers) == 0 {
		servers = []string{c.Host}
	}
	for _, s := range servers {
		a, err := addressOf(s)
		if err != nil {
			return nil, nil, nil, cli.Usage(err)
		}
		if !slices.Contains(addresses, a) { // $(HOST_IP) first, then all
			addresses = append(addresses, a)
		}
	}
	if !chooses {
		return c, addresses, nil, nil
	}
	c.Host = "https://" + addresses[0]
	own = &apiservers{}
	own.order.Store(&addresses)
	c.Dial = own.dial
	c.Wrap(own.wrap)
	return c, addresses, own, nil
}

// addressOf returns the address of a local apiserver's URL. IPv6 needs no brackets: https://$(HOST_IP):6443 has none.
func addressOf(server string) (string, error) {
	bare, https := strings.CutPrefix(server, "https://")
	at := max(0, strings.LastIndexByte(bare, ':'))
	if ip, err := netip.ParseAddr(bare[:at]); https && err == nil && ip.Is6() {
		server = "https://" + net.JoinHostPort(bare[:at], bare[at+1:])
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" ||
		u.Path != "" && u.Path != "/" {
		return "", fmt.Errorf("local apiserver %q is not https://host:port", server)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), nil
}

// clusterName returns the cluster's name in the kubeconfig, where kubeadm writes it. A pod's configuration has none.
func clusterName(kubeconfig string) string {
	c, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || c.Contexts[c.CurrentContext] == nil {
		return "" // there is none, or connecting with it reports why
	}
	return c.Contexts[c.CurrentContext].Cluster
}

// follower is the transport of Fairlead's own clients. It uses what the kubeconfig says now,
// embedded credentials included; client-go itself follows the files that the kubeconfig names.
type follower struct {
	first   *rest.Config
	current atomic.Pointer[http.RoundTripper]
	config  atomic.Pointer[rest.Config] // of current
	log     *slog.Logger
}

func follow(c *rest.Config, log *slog.Logger) (*follower, *rest.Config, error) {
	f := &follower{first: c, log: log}
	return f, &rest.Config{
		Host: c.Host, UserAgent: c.UserAgent, QPS: c.QPS,
		Transport: promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			return (*f.current.Load()).RoundTrip(r)
		}),
	}, f.take(c)
}

// take makes the clients use c from the next request on. Open watches stay on their connections.
func (f *follower) take(c *rest.Config) error {
	t, err := rest.TransportFor(c)
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	f.current.Store(&t)
	f.config.Store(c)
	return nil
}

// certificate returns the client certificate in force, and those above it: nothing renews it with the cluster's.
func (f *follower) certificate() []*x509.Certificate {
	c := rest.CopyConfig(f.config.Load())
	_ = rest.LoadTLSFiles(c)                       // a file may be being written
	chain, _ := certutil.ParseCertsPEM(c.CertData) // none of a token
	return trust.Path(chain)
}

// reload takes credentials and CA from new content of the kubeconfig, but no server: pools were made for the first one.
func (f *follower) reload(path string) (*rest.Config, error) {
	raw, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}).Load() // without a fall-back to a pod's
	var c *rest.Config
	if err == nil {
		c, err = clientcmd.NewDefaultClientConfig(*raw, &clientcmd.ConfigOverrides{}).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	if f.first.Dial == nil && c.Host != f.first.Host {
		f.log.Warn("the kubeconfig names another server: restart to follow it", "kubeconfig", path, "server", c.Host)
	}
	c.Host, c.UserAgent, c.QPS = f.first.Host, f.first.UserAgent, f.first.QPS
	c.Dial, c.Proxy, c.WrapTransport = f.first.Dial, f.first.Proxy, f.first.WrapTransport
	was := f.config.Load()
	if err := f.take(c); err != nil {
		return nil, err
	}
	if c.Insecure != was.Insecure && c.Insecure != f.first.Insecure ||
		c.ServerName != was.ServerName && c.ServerName != f.first.ServerName {
		f.log.Warn("the kubeconfig has another insecure-skip-tls-verify or tls-server-name: restart to follow it for "+
			"forwarded requests", "kubeconfig", path, "insecure", c.Insecure, "name", c.ServerName)
	}
	return c, nil
}

// caFile returns the file with the CA of a kubeconfig. Empty means that the CA is embedded, or that there is none.
func caFile(c *rest.Config) string {
	if len(c.CAData) > 0 {
		return ""
	}
	return c.CAFile
}

// takeCA takes the CA of a kubeconfig with another source than before. Only the file of the start is followed.
func (k *kube) takeCA(c *rest.Config, followed string) error {
	file := caFile(c)
	if file == "" {
		return k.trust.LocalBundle(c.CAData)
	}
	if file != followed {
		k.log.Warn("the kubeconfig names another CA file: restart to follow its changes",
			"kubeconfig", k.o.kubeconfig, "file", file)
	}
	bundle, err := os.ReadFile(file)
	if err == nil && len(bundle) == 0 { // it would mean the system's roots
		err = errors.New("it is empty")
	}
	if err != nil {
		return fmt.Errorf("reading the local apiserver's CA from %s: %w", file, err)
	}
	return k.trust.LocalBundle(bundle)
}
