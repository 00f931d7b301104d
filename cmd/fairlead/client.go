package main

import (
	"fmt"
	"net"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// clientConfig says how Fairlead itself speaks to the local apiserver, and where its servers are. Only those are ever dialled, and own chooses among them if they were named.
func clientConfig(kubeconfig string, servers []string) (c *rest.Config, urls []string, own *apiservers, err error) {
	c, err = loadConfig(kubeconfig)
	if err != nil {
		return nil, nil, nil, err
	}
	c.UserAgent = "fairlead/" + version
	c.QPS = -1 // no limit: reviews have their own bounds, by which strangers cannot take the place of those who are known; watches are few
	if len(servers) == 0 {
		return c, []string{c.Host}, nil, nil
	}
	var addresses []string
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, nil, nil, cli.Usage(fmt.Errorf("--local-apiserver %q is not an https URL", s))
		}
		port := u.Port()
		if port == "" {
			port = "443"
		}
		addresses = append(addresses, net.JoinHostPort(u.Hostname(), port))
	}
	c.Host = servers[0]
	own = newAPIServers(addresses)
	c.Dial = own.dial
	c.Wrap(own.wrap)
	return c, servers, own, nil
}

// loadConfig reads the kubeconfig that was named, or the pod's own. A server never looks into a home directory.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("--kubeconfig is required outside a pod: %w", err))
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--kubeconfig: %w", err))
	}
	return c, nil
}
