package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// clientConfig says how Fairlead itself speaks to the local apiserver, and where its servers are. Only those are ever dialled.
func clientConfig(kubeconfig string, servers []string) (*rest.Config, []string, error) {
	c, err := loadConfig(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	c.UserAgent = "fairlead/" + version
	c.QPS = -1 // no limit: reviews have their own bounds, by which strangers cannot take the place of those who are known; watches are few
	if len(servers) == 0 {
		return c, []string{c.Host}, nil
	}
	var addresses []string
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, nil, usageError{fmt.Errorf("--local-apiserver %q is not an https URL", s)}
		}
		port := u.Port()
		if port == "" {
			port = "443"
		}
		addresses = append(addresses, net.JoinHostPort(u.Hostname(), port))
	}
	c.Host = servers[0]
	c.Dial = dialAny(addresses)
	return c, servers, nil
}

// loadConfig reads the kubeconfig that was named, or the pod's own. A server never looks into a home directory.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, usageError{fmt.Errorf("--kubeconfig is required outside a pod: %w", err)}
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, usageError{fmt.Errorf("--kubeconfig: %w", err)}
	}
	return c, nil
}

// dialAny connects to the first address that answers, so that Fairlead's own watches survive the death of one apiserver of several.
func dialAny(addresses []string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		var faults []error
		for _, a := range addresses {
			c, err := new(net.Dialer).DialContext(ctx, network, a)
			if err == nil {
				return c, nil
			}
			faults = append(faults, err)
		}
		return nil, errors.Join(faults...)
	}
}
