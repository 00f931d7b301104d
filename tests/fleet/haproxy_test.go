//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// frontPort is HAProxy's port. The network namespace is this package's own, and package cluster
// uses ports from 11000.
const frontPort = 10443

// balancer is an HAProxy in TCP mode, as in front of a cluster's control plane: it checks /readyz,
// and does not see requests.
type balancer struct {
	part *cluster.Part
	file string
}

// configuration is that of kubeadm's documentation, with more frequent checks: 0.5 s, twice.
const configuration = `
global
    maxconn 4000
defaults
    mode tcp
    timeout connect 1s
    timeout check 1s
    timeout client 1h
    timeout server 1h
    retries 3
    option redispatch 1
frontend front
    bind 127.0.0.1:%d
    default_backend servers
backend servers
    balance roundrobin
    option httpchk GET /readyz
    default-server check check-ssl verify none inter 500ms fall 2 rise 2
`

// newBalancer starts an HAProxy in front of these servers.
func newBalancer(t *testing.T, c *cluster.Cluster, servers []cluster.Endpoint) *balancer {
	t.Helper()
	path := must.Get(exec.LookPath("haproxy"))(t)
	b := &balancer{file: filepath.Join(c.Dir(), "haproxy.cfg")}
	b.write(t, servers)
	client := suite.Client(t, front(c), c.Admin())
	b.part = must.Get(c.Run(t.Context(), cluster.Command{Name: "haproxy", Path: path, Args: []string{"-db", "-f", b.file}, Ready: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a hung server is not ready
		defer cancel()
		return ask.Serves(ctx, client, front(c).URL+"/readyz")
	}}))(t)
	return b
}

// point restarts HAProxy with other servers. All connections end.
func (b *balancer) point(t *testing.T, servers []cluster.Endpoint) {
	t.Helper()
	b.write(t, servers)
	must.Do(t, b.part.Restart(t.Context()))
}

func (b *balancer) write(t *testing.T, servers []cluster.Endpoint) {
	t.Helper()
	text := fmt.Sprintf(configuration, frontPort)
	for i, s := range servers {
		text += fmt.Sprintf("    server server%d %s\n", i, strings.TrimPrefix(s.URL, "https://"))
	}
	must.Do(t, os.WriteFile(b.file, []byte(text), 0o600))
}

func front(c *cluster.Cluster) cluster.Endpoint {
	return cluster.Endpoint{URL: fmt.Sprintf("https://127.0.0.1:%d", frontPort), CAFile: c.PKI.Serving.CertFile}
}
