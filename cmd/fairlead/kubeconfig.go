package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// follower is the transport of Fairlead's own clients. It goes by what the kubeconfig says now, embedded credentials included; files that the kubeconfig names are
// followed by client-go itself.
type follower struct {
	first   *rest.Config
	current atomic.Pointer[http.RoundTripper]
	log     *slog.Logger
}

// follow returns the configuration of clients that follow the kubeconfig which c was made of.
func follow(c *rest.Config, log *slog.Logger) (*follower, *rest.Config, error) {
	f := &follower{first: c, log: log}
	if err := f.take(c); err != nil {
		return nil, nil, err
	}
	host := c.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host // without TLS of its own, client-go would take it for http
	}
	return f, &rest.Config{Host: host, APIPath: c.APIPath, UserAgent: c.UserAgent, QPS: c.QPS, Burst: c.Burst, Timeout: c.Timeout, Transport: f}, nil
}

// take makes the clients go by c from the next request on. Watches that are open stay on the connection that they are on.
func (f *follower) take(c *rest.Config) error {
	t, err := rest.TransportFor(c)
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	f.current.Store(&t)
	return nil
}

// reload takes the credentials and the CA of a kubeconfig's new content. Its server stays: pools and probes were made for the one that it named at the start.
func (f *follower) reload(path string, data []byte) (*rest.Config, error) {
	c, err := parseKubeconfig(path, data)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	if f.first.Dial == nil && c.Host != f.first.Host {
		f.log.Warn("the kubeconfig names another server: restart to follow it", "kubeconfig", path, "server", c.Host)
	}
	c.Host, c.UserAgent, c.QPS, c.Burst, c.Dial, c.WrapTransport = f.first.Host, f.first.UserAgent, f.first.QPS, f.first.Burst, f.first.Dial, f.first.WrapTransport
	return c, f.take(c)
}

// parseKubeconfig reads a kubeconfig as clientcmd reads the file: paths in it are relative to it.
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
