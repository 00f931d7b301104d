//go:build e2e

package operate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/must"
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
