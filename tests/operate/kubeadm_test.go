//go:build e2e

package operate

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testKubeadm follows docs/operations.md on a node of the tutorial, and runs each command as
// written.
func testKubeadm(t *testing.T, c *controlPlane) {
	blocks := documented(t, "operations.md", "On kubeadm")
	if len(blocks) != 5 {
		t.Fatalf("%d blocks, want 5", len(blocks))
	}
	fetch, add, lint := blocks[0].text, blocks[1].text, blocks[2].text // then those that have no node
	t.Run("certificates", func(t *testing.T) {
		c.on(t, firstNode, fetch)
		c.addName(t, "front.example.com")
		c.on(t, firstNode, add)
		if out := c.on(t, firstNode, "openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -ext subjectAltName"); !strings.Contains(out, "DNS:front.example.com") || !strings.Contains(out, "IP Address:"+balancer) {
			t.Errorf("the certificate has:\n%s", out)
		}
	})
	t.Run("lint", func(t *testing.T) {
		out := c.on(t, firstNode, strings.ReplaceAll(lint, "<node>", firstNode))
		if lines := strings.Count(out, "\n"); lines != 1 || !strings.Contains(out, "--requestheader-uid-headers") {
			t.Errorf("lint of a node made by kubeadm reports:\n%s", out)
		}
	})
	t.Run("renew", func(t *testing.T) {
		before := c.presented(t).SerialNumber.String()
		c.on(t, firstNode, "kubeadm certs renew apiserver && kubeadm certs renew front-proxy-client")
		suite.Eventually(t, 90*time.Second, "presented", func() (bool, string) {
			now := c.presented(t).SerialNumber.String()
			return now != before, now
		})
		if out := c.follow(t, "kubectl --server=https://"+firstNode+":8443 get --raw /fairlead/status"); !strings.Contains(out, `"apiServices":`) {
			t.Error(out)
		}
	})
}

// presented returns the certificate that Fairlead presents on the first node.
func (c *controlPlane) presented(t *testing.T) *x509.Certificate {
	t.Helper()
	pool := suite.Pool(t, "/etc/netns/"+firstNode+"/kubernetes/pki/ca.crt")
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}).DialContext(t.Context(), "tcp", firstNode+":8443")
	must.Do(t, err)
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// addName adds a name to the kubeadm configuration that was fetched, and the node's own part, which
// the cluster does not store.
func (c *controlPlane) addName(t *testing.T, name string) {
	t.Helper()
	file := firstNode + "/kubeadm.yaml"
	data := must.Get(os.ReadFile(filepath.Join(c.folder, file)))(t)
	var configuration map[string]any
	must.Do(t, yaml.Unmarshal(data, &configuration))
	configuration["apiServer"] = map[string]any{"certSANs": []string{name}}
	data = must.Get(yaml.Marshal(configuration))(t)
	node, _, _ := strings.Cut(initConfiguration, "---")
	c.write(t, file, node+"---\n"+string(data))
}
