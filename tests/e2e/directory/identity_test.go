//go:build e2e

package directory

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/pki/issuer"
)

const roles = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [widgets.example.com], resources: [widgets], verbs: [get, list]}
- {nonResourceURLs: ["/apis", "/apis/*", "/api", "/openapi/*", "/version"], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers}
roleRef: {kind: ClusterRole, name: reader}
subjects: [{kind: Group, name: readers}]
`

func token(s string) cluster.Credentials { return cluster.Credentials{Token: s} }

// testIdentity checks authentication and authorization without a cluster, and that a broken file keeps what was read
// before. cmd/fairlead's TestIdentities has certificates and front proxies.
func testIdentity(t *testing.T, w *world) {
	registry, dir := t.TempDir(), t.TempDir()
	i := issuer.Start(t)
	put(t, registry, w.extension(t, "widgets.example.com/v1"), "widgets.example.com", "")
	suite.Put(t, filepath.Join(registry, "roles.yaml"), roles)
	suite.Put(t, filepath.Join(dir, "tokens.csv"), "alice-token,alice,1,readers\nbob-token,bob,2\n")
	suite.Put(t, filepath.Join(dir, "config.yaml"), i.Config("oidc:")+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	d := w.open(t, registry, "--token-auth-file="+filepath.Join(dir, "tokens.csv"), "--authentication-config="+filepath.Join(dir, "config.yaml"))
	d.becomes(t, d.root, widgets, http.StatusOK)
	bob, jane, nobody := w.client(t, token("bob-token")), w.client(t, token(i.Token(t, nil))), w.client(t, cluster.Credentials{})
	d.becomes(t, jane, widgets, http.StatusOK)
	d.status(t, w.client(t, token("alice-token")), widgets, http.StatusOK)
	d.status(t, bob, widgets, http.StatusForbidden)
	d.status(t, w.client(t, token(i.Token(t, map[string]any{"aud": "other"}))), widgets, http.StatusUnauthorized)
	d.status(t, nobody, widgets, http.StatusUnauthorized)
	d.status(t, nobody, "/livez", http.StatusOK) // as the configuration allows
	t.Run("impersonation", func(t *testing.T) {
		k := kubectl.As(t, d.front, w.user(t, "root", "system:masters"))
		k.Says(t, 0, "", "get widgets.widgets.example.com -A -o name --as=frank --as-group=readers", "widget")
	})
	t.Run("broken files keep the rest", func(t *testing.T) {
		registered := filepath.Join(registry, "widgets.example.com.yaml")
		suite.Put(t, filepath.Join(dir, "tokens.csv"), "bob-token\n")
		suite.Put(t, registered, "kind: [\n")
		suite.Eventually(t, 30*time.Second, "reported", func() (bool, string) {
			_, body := alone.Get(t, d.root, "https://"+d.Admin+"/metrics")
			counted := strings.Contains(body, fmt.Sprintf("fairlead_registry_file_problems{file=%q}", registered))
			return counted && strings.Contains(d.Log.String(), "line 1 has 1 columns"), body + d.Log.String()
		})
		d.status(t, bob, widgets, http.StatusForbidden)
		d.status(t, d.root, widgets, http.StatusOK)
	})
}

// testMode lets extension servers authorize their own requests.
func testMode(t *testing.T, w *world) {
	registry := t.TempDir()
	put(t, registry, w.extension(t, "widgets.example.com/v1"), "widgets.example.com", "")
	d := w.open(t, registry, "--authorization-mode=backend")
	bob := w.client(t, w.user(t, "bob"))
	d.becomes(t, bob, widgets, http.StatusOK)
	d.status(t, bob, "/apis/apiregistration.k8s.io/v1/apiservices", http.StatusForbidden)
	d.status(t, w.client(t, cluster.Credentials{}), widgets, http.StatusUnauthorized)
}
