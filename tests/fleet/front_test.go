//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"net/http"
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
	"github.com/fairlead-proxy/fairlead/tests/volley"
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
	b := &balancer{file: filepath.Join(c.Dir(), "haproxy.cfg")}
	b.write(t, servers)
	client := suite.Client(t, front(c), c.Admin())
	client.Timeout = 5 * time.Second // a hung server is not ready
	b.part = must.Get(c.Run(t.Context(), cluster.Command{
		Name: "haproxy", Path: must.Get(exec.LookPath("haproxy"))(t), Args: []string{"-db", "-f", b.file},
		Ready: func(ctx context.Context) error { return ask.Serves(ctx, client, front(c).URL+"/readyz") },
	}))(t)
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

const (
	// rate is how many requests start per second, whether or not earlier ones have ended.
	rate = 50
	// latest is the time within which each must be answered: the limit is 2 s.
	latest = 2 * time.Second
	// objects is the number of ConfigMaps that are read, written and watched.
	objects = 20
)

// path is their collection.
const path = "/api/v1/namespaces/fleet/configmaps"

// payload makes an event longer than an HTTP/2 frame, so that a broken connection would cut it.
var payload = strings.Repeat("x", 20<<10)

// newLoad returns a load that reads an object, writes one, or lists small ones.
func newLoad(clients []*http.Client, base string) *volley.Load {
	return &volley.Load{Every: time.Second / rate, Clients: clients, Again: turnedAway, Make: func(i int) (method, url, body string) {
		object := fmt.Sprintf("%s%s/object-%d", base, path, i%objects)
		switch i % 4 {
		case 1:
			return http.MethodPatch, object, fmt.Sprintf(`{"data":{"n":"%d"}}`, i)
		case 3:
			return http.MethodGet, base + "/api/v1/namespaces/fleet/serviceaccounts", ""
		}
		return http.MethodGet, object, ""
	}}
}

// turnedAway reports whether kube-apiserver itself asks for a retry after a second: it refuses
// requests a moment before it sends GOAWAY. client-go retries them (rest.withRetry), directly and
// through proxies. Fairlead's own answers are not retried here. Retries count as part of the
// request's time.
func turnedAway(s *volley.Shot) bool {
	return s.Code == http.StatusServiceUnavailable && strings.Contains(s.Text, `"apiserver is shutting down"`) && s.Repeated < 10 // as client-go
}

// judge returns how many requests failed or were late. It fails the test if they are more than
// most.
func judge(t *testing.T, shots []volley.Shot, most int) int {
	t.Helper()
	away := 0
	for _, s := range shots {
		away += min(s.Repeated, 1)
	}
	t.Logf("%d requests were turned away by kube-apiserver", away)
	return volley.Judge(t, shots, most, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil || s.Took > latest })
}
