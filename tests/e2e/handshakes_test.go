//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Clients whose TLS handshakes fail are counted by cause, and lint says what to do for most of them. kube-apiserver
// counts all in one number, a balancer's check with them.
func TestFailedHandshakes(t *testing.T) {
	w := suite.Start(t, cluster.Config{Dir: suite.Folder(t, "handshakes")})
	path := suite.Build(t, t.TempDir(), "cmd/kubectl-fairlead")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: path}))(t)
	strangers := suite.TLS(t, front.Endpoint, cluster.Credentials{})
	strangers.RootCAs, strangers.ServerName = x509.NewCertPool(), "localhost"
	old := suite.TLS(t, front.Endpoint, cluster.Credentials{})
	old.MinVersion, old.MaxVersion, old.ServerName = tls.VersionTLS10, tls.VersionTLS11, "localhost"
	for range 3 { // three strangers, and one of each other
		for _, e := range []cluster.Endpoint{front.Endpoint, w.Endpoint()} {
			conn := must.Get(net.Dial("tcp", must.Get(url.Parse(e.URL))(t).Host))(t)
			client := tls.Client(conn, strangers)
			if client.Handshake() == nil {
				t.Error("a client that knows no CA accepts the certificate")
			}
			_ = conn.Close()
		}
	}
	for _, e := range []cluster.Endpoint{front.Endpoint, w.Endpoint()} {
		for _, say := range []func(net.Conn){
			func(c net.Conn) { _ = tls.Client(c, old).Handshake() },
			func(c net.Conn) { _, _ = io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n") },
			func(c net.Conn) { _, _ = io.WriteString(c, "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n") },
			func(net.Conn) {}, // a balancer's check
		} {
			conn := must.Get(net.Dial("tcp", must.Get(url.Parse(e.URL))(t).Host))(t)
			say(conn)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}
	admin := suite.Client(t, front.Admin, w.Admin())
	counted := map[string]float64{}
	suite.Eventually(t, 10*time.Second, "each failure is counted by its cause", func() (bool, string) {
		for series, n := range must.Get(ask.Metrics(t.Context(), admin, front.Admin.URL))(t) {
			if cause, ok := strings.CutPrefix(series, `fairlead_tls_handshake_errors_total{cause="`); ok && strings.Contains(series, `port="front"`) && n > 0 {
				cause, _, _ = strings.Cut(cause, `"`)
				counted[cause] = n
			}
		}
		return maps.Equal(counted, map[string]float64{"certificate_refused": 3, "version": 1, "plain_http": 1, "proxy_header": 1}), fmt.Sprint(counted)
	})
	direct := must.Get(ask.Metrics(t.Context(), suite.Client(t, w.Endpoint(), w.Admin()), w.Endpoint().URL))(t)
	t.Logf("failed handshakes of three clients without the CA, one of TLS 1.1, HTTP, the PROXY protocol, and a check: here %v, at kube-apiserver %v", counted, direct["apiserver_tls_handshake_errors_total"])
	kubeconfig := must.Get(w.Kubeconfig(front.Endpoint, "linter", cluster.Leaf{User: "linter", Groups: []string{"system:masters"}}))(t)
	lint := suite.Run(t, exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(path), "kubectl-fairlead"), "lint", "--kubeconfig="+kubeconfig), "")
	const want = "3 TLS handshakes failed in "
	if !strings.Contains(lint.Out, want) || !strings.Contains(lint.Out, "does not accept the serving certificate") {
		t.Errorf("lint says\n%s%s", lint.Out, lint.Errs)
	}
}
