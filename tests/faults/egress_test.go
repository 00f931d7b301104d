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
	for name, start := range map[string]func(t *testing.T, p *connectProxy) string{
		"over a Unix socket": func(t *testing.T, p *connectProxy) string {
			socket := filepath.Join(t.TempDir(), "proxy")
			p.listen(t, "unix", socket, nil)
			return "uds: {udsName: " + socket + "}"
		},
		"over TCP": func(t *testing.T, p *connectProxy) string {
			serving, err1 := d.w.PKI.Serving.Issue("egress", cluster.Leaf{User: "egress", Names: []string{"127.0.0.1"}})
			client, err2 := d.w.PKI.Client.Issue("egress-client", cluster.Leaf{User: "fairlead"})
			pair, err3 := tls.LoadX509KeyPair(serving.CertFile, serving.KeyFile)
			must.Do(t, errors.Join(err1, err2, err3))
			address := p.listen(t, "tcp", "127.0.0.1:0", &tls.Config{
				Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: suite.Pool(t, d.w.PKI.Client.CertFile), MinVersion: tls.VersionTLS12,
			})
			return fmt.Sprintf("tcp: {url: \"https://%s\", tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}}",
				address, d.w.PKI.Serving.CertFile, client.CertFile, client.KeyFile)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &connectProxy{behind: map[string]string{}, tunnels: map[string]int{}}
			throughEgress(t, d, p, start(t, p))
		})
	}
}

func throughEgress(t *testing.T, d *door, p *connectProxy, transport string) {
	b := d.w.newBackend()
	servers := b.serve(t, 2)
	var beyond []string // reachable only through the proxy
	for i, s := range servers {
		beyond = append(beyond, fmt.Sprintf("192.0.2.%d:%d", i+1, port))
		p.behind[beyond[i]] = s.Addr()
	}
	b.register(t, beyond...)
	file := filepath.Join(t.TempDir(), "egress.yaml")
	text := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n" +
		"- name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      " + transport + "\n"
	must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	x := d.w.newDoor(t, "--egress-selector-config-file="+file)
	b.await(t, x)
	if !b.unavailable(d) {
		t.Error("a Fairlead without the proxy reaches the endpoints, too: the proxy proves nothing")
	}
	l := (&volley.Load{Every: 10 * time.Millisecond, Clients: d.w.clients(2, true), Make: x.mixed(b)}).Start(t)
	suite.Pause(t, 2*time.Second)
	for i, s := range servers {
		if n, _ := strangers(b, s, 0); n == 0 {
			t.Errorf("endpoint %d got no traffic", i)
		}
		if accepted := s.Stats().Accepted; accepted != int64(p.count(beyond[i])) {
			t.Errorf("endpoint %d accepted %d connections, the proxy opened %d", i, accepted, p.count(beyond[i]))
		}
	}
	refused := d.w.start()
	must.Do(t, servers[0].Set(extension.Fault{Kind: extension.Refuse}))
	refused.within(t, nextProbe, "unhealthy", eventually(t, "unhealthy", func() bool { return !b.healthy(x, beyond[0]) }))
	must.Do(t, servers[0].Set())
	eventually(t, "healthy again", func() bool { return b.healthy(x, beyond[0]) })
	mustSucceed(t, l.Stop(), 0)
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
func (p *connectProxy) listen(t *testing.T, network, address string, secure *tls.Config) string {
	t.Helper()
	l := must.Get(net.Listen(network, address))(t)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
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
