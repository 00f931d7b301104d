package main

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
)

// follower is the transport of Fairlead's own clients. It uses what the kubeconfig says now,
// embedded credentials included; client-go itself follows the files that the kubeconfig names.
type follower struct {
	first   *rest.Config
	current atomic.Pointer[http.RoundTripper]
	config  atomic.Pointer[rest.Config] // of current
	log     *slog.Logger
}

// follow returns the configuration of clients that follow the kubeconfig from which c was read.
func follow(c *rest.Config, log *slog.Logger) (*follower, *rest.Config, error) {
	f := &follower{first: c, log: log}
	if err := f.take(c); err != nil {
		return nil, nil, err
	}
	host := c.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host // without a TLS configuration client-go assumes http
	}
	return f, &rest.Config{Host: host, APIPath: c.APIPath, UserAgent: c.UserAgent, QPS: c.QPS, Burst: c.Burst, Timeout: c.Timeout, Transport: f}, nil
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

// certificate returns the client certificate in force, so that its expiry is reported: nothing
// renews it together with the cluster's certificates.
func (f *follower) certificate() []*x509.Certificate {
	c := rest.CopyConfig(f.config.Load())
	if err := rest.LoadTLSFiles(c); err != nil || len(c.CertData) == 0 {
		return nil // a token, or a file that is being written
	}
	chain, err := certutil.ParseCertsPEM(c.CertData)
	if err != nil {
		return nil
	}
	return chain[:1]
}

// reload takes the credentials and the CA from new content of the kubeconfig. The server stays the
// same, because pools and probes were made for it at the start.
func (f *follower) reload(path string, data []byte) (*rest.Config, error) {
	c, err := parseKubeconfig(path, data)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	if f.first.Dial == nil && c.Host != f.first.Host {
		f.log.Warn("the kubeconfig names another server: restart to follow it", "kubeconfig", path, "server", c.Host)
	}
	c.Host, c.UserAgent, c.QPS, c.Burst, c.Dial, c.WrapTransport = f.first.Host, f.first.UserAgent, f.first.QPS, f.first.Burst, f.first.Dial, f.first.WrapTransport
	was := f.config.Load().Insecure
	if err := f.take(c); err != nil {
		return nil, err
	}
	if c.Insecure != was && c.Insecure != f.first.Insecure {
		f.log.Warn("the kubeconfig has gained or lost insecure-skip-tls-verify: restart to follow it for forwarded requests", "kubeconfig", path, "insecure", c.Insecure)
	}
	return c, nil
}

// parseKubeconfig reads a kubeconfig as clientcmd does: paths in it are relative to the file.
func parseKubeconfig(path string, data []byte) (*rest.Config, error) {
	raw, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	for _, c := range raw.Clusters {
		c.LocationOfOrigin = path
	}
	for _, a := range raw.AuthInfos {
		a.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(raw); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*raw, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// RoundTrip implements http.RoundTripper.
func (f *follower) RoundTrip(r *http.Request) (*http.Response, error) {
	return (*f.current.Load()).RoundTrip(r)
}
