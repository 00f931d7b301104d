package main

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// A dead connection is found within a read idle and a ping timeout, so soon that a review that
// waits on it can be repeated in its ten seconds. With client-go's 30 s and 15 s all reviews of
// 45 s would fail.
const ownReadIdle, ownPing = "2", "5"

// pingOften sets these times. client-go takes them only from the environment, where the operator
// may have set others.
func pingOften() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": ownReadIdle, "HTTP2_PING_TIMEOUT_SECONDS": ownPing} {
		if _, given := os.LookupEnv(name); !given {
			_ = os.Setenv(name, seconds) // it fails only for names that are not possible
		}
	}
}

// clientConfig returns how Fairlead itself talks to the local apiserver, and the servers' URLs.
// Only those servers are ever dialled. own chooses among them; it is nil unless servers were named.
func clientConfig(kubeconfig string, servers []string) (c *rest.Config, urls []string, own *apiservers, err error) {
	c, err = loadConfig(kubeconfig)
	if err != nil {
		return nil, nil, nil, err
	}
	pingOften()
	c.UserAgent = "fairlead/" + version
	c.QPS = -1 // no limit: reviews have their own, which protect known callers; watches are few
	if len(servers) == 0 {
		return c, []string{c.Host}, nil, nil
	}
	var addresses []string
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, nil, nil, cli.Usage(fmt.Errorf("--local-apiserver %q is not an https URL", s))
		}
		addresses = append(addresses, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	}
	c.Host = servers[0]
	own = &apiservers{open: make(map[*ownConn]struct{})}
	own.order.Store(&addresses)
	c.Dial = own.dial
	c.Wrap(own.wrap)
	return c, servers, own, nil
}

// loadConfig reads the given kubeconfig, or else the pod's own configuration. A server never reads
// a home directory.
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

// clusterName returns the cluster's name in the kubeconfig; kubeadm writes its configured name
// there. It returns "" for a pod's configuration, which has none.
func clusterName(kubeconfig string) string {
	if kubeconfig == "" {
		return ""
	}
	c, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || c.Contexts[c.CurrentContext] == nil {
		return "" // connecting with it reports why
	}
	return c.Contexts[c.CurrentContext].Cluster
}
