//go:build e2e

package faults

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/relay"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testEgress has endpoints that can be reached only through a proxy, as if a hosted control plane
// had no route to its nodes.
func testEgress(t *testing.T, d *door) {
	serving, err1 := d.w.PKI.Serving.Issue("egress", cluster.Leaf{User: "egress", Names: []string{"127.0.0.1"}})
	client, err2 := d.w.PKI.Client.Issue("egress-client", cluster.Leaf{User: "fairlead"})
	pair, err3 := tls.LoadX509KeyPair(serving.CertFile, serving.KeyFile)
	must.Do(t, errors.Join(err1, err2, err3))
	b := d.w.newBackend()
	servers := b.serve(t, 2)
	p := &connectProxy{behind: map[string]string{}, tunnels: map[string]int{}}
	var beyond []string // reachable only through the proxy
	for i, s := range servers {
		beyond = append(beyond, fmt.Sprintf("192.0.2.%d:%d", i+1, port))
		p.behind[beyond[i]] = s.Addr()
	}
	address := p.listen(t, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: suite.Pool(t, d.w.PKI.Client.CertFile), MinVersion: tls.VersionTLS12,
	})
	b.register(t, beyond...)
	file := filepath.Join(t.TempDir(), "egress.yaml")
	must.Do(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {tcp: {url: "https://%s", tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}}}
`, address, d.w.PKI.Serving.CertFile, client.CertFile, client.KeyFile), 0o600))
	x := d.w.newDoor(t, "--egress-selector-config-file="+file)
	b.await(t, x)
	if !b.unavailable(d) {
		t.Error("a Fairlead without the proxy reaches the endpoints, too: the proxy proves nothing")
	}
	l := (&volley.Load{Every: 10 * time.Millisecond, Clients: d.w.clients(2, true), Make: x.mixed(b)}).Start(t)
	suite.Pause(t, 2*time.Second)
	mustSucceed(t, l.Stop(), 0)
	for i, s := range servers {
		asked := slices.ContainsFunc(s.Requests(0), func(r extension.Request) bool { return strings.HasPrefix(r.Target, b.widgets()) })
		if accepted := s.Stats().Accepted; !asked || accepted != int64(p.count(beyond[i])) {
			t.Errorf("endpoint %d accepted %d connections, the proxy opened %d; it got traffic: %t", i, accepted, p.count(beyond[i]), asked)
		}
	}
}

// connectProxy answers CONNECT for the addresses in behind only.
type connectProxy struct {
	behind map[string]string // :: requested address → real one

	mu      sync.Mutex     // guards tunnels
	tunnels map[string]int // :: requested address → connections made
}

func (p *connectProxy) count(address string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tunnels[address]
}

// listen serves until the test ends, and returns its address.
func (p *connectProxy) listen(t *testing.T, secure *tls.Config) string {
	t.Helper()
	l := must.Get(tls.Listen("tcp", "127.0.0.1:0", secure))(t)
	relay.Accept(t, l, p.serve)
	return l.Addr().String()
}

func (p *connectProxy) serve(ctx context.Context, c net.Conn) {
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil || req.Method != http.MethodConnect || p.behind[req.Host] == "" {
		fmt.Fprint(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	s, err := new(net.Dialer).DialContext(ctx, "tcp", p.behind[req.Host])
	if err != nil {
		fmt.Fprint(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	p.mu.Lock()
	p.tunnels[req.Host]++
	p.mu.Unlock()
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
	relay.Join(ctx, c, s, r)
}
