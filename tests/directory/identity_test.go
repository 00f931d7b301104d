//go:build e2e

package directory

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/issuer"
	"github.com/fairlead-proxy/fairlead/tests/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
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

// testIdentity checks authentication and authorization without a cluster, and that a broken file
// keeps what was read before.
func testIdentity(t *testing.T, w *world) {
	registry, dir := t.TempDir(), t.TempDir()
	i := issuer.Start(t)
	put(t, registry, w.extension(t, "widgets.example.com/v1"), "widgets.example.com", "")
	suite.Put(t, filepath.Join(registry, "roles.yaml"), roles)
	suite.Put(t, filepath.Join(dir, "tokens.csv"), "alice-token,alice,1,readers\nbob-token,bob,2\n")
	suite.Put(t, filepath.Join(dir, "config.yaml"), i.Config("oidc:")+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	fronts := pki.NewCA("front proxies of clients")
	d := w.open(t, registry, "--token-auth-file="+filepath.Join(dir, "tokens.csv"), "--authentication-config="+filepath.Join(dir, "config.yaml"),
		"--requestheader-client-ca-file="+alone.Bundle(t, fronts), "--requestheader-allowed-names=door")
	d.becomes(t, d.root, widgets, http.StatusOK)
	bob, jane, nobody := w.client(t, token("bob-token")), w.client(t, token(i.Token(t, nil))), w.client(t, cluster.Credentials{})
	proxy := w.client(t, cluster.Credentials{Pair: alone.Pair(t, fronts, pki.Leaf{CommonName: "door"})})
	proxy.Transport = asserting{"erin", "readers", proxy.Transport}
	liar := w.client(t, w.user(t, "dave"))
	liar.Transport = asserting{"erin", "system:masters", liar.Transport}
	d.becomes(t, jane, widgets, http.StatusOK)
	for _, tc := range []struct {
		name string
		who  *http.Client
		path string
		want int
	}{
		{"a token's user by a role", w.client(t, token("alice-token")), widgets, http.StatusOK},
		{"no role", bob, widgets, http.StatusForbidden},
		{"a JWT of another audience", w.client(t, token(i.Token(t, map[string]any{"aud": "other"}))), widgets, http.StatusUnauthorized},
		{"nothing", nobody, widgets, http.StatusUnauthorized},
		{"nothing where the configuration allows it", nobody, "/livez", http.StatusOK},
		{"request headers", proxy, widgets, http.StatusOK},
		{"request headers of nobody's proxy", liar, widgets, http.StatusForbidden},
	} {
		t.Run(tc.name, func(t *testing.T) { d.status(t, tc.who, tc.path, tc.want) })
	}
	t.Run("impersonation", func(t *testing.T) {
		k := kubectl.As(t, d.front, w.user(t, "root", "system:masters"))
		k.Says(t, 0, "", "get widgets.widgets.example.com -A -o name --as=frank --as-group=readers", "widget")
	})
	t.Run("broken files keep the rest", func(t *testing.T) {
		registered := filepath.Join(registry, "widgets.example.com.yaml")
		suite.Put(t, filepath.Join(dir, "tokens.csv"), "bob-token\n")
		suite.Put(t, registered, "kind: [\n")
		suite.Eventually(t, 10*time.Second, "reported", func() (bool, string) {
			_, body := alone.Get(t, d.root, "https://"+d.Admin+"/metrics")
			counted := strings.Contains(body, fmt.Sprintf("fairlead_registry_file_problems{file=%q}", registered))
			return counted && strings.Contains(d.Log.String(), "line 1 has 1 columns"), body + d.Log.String()
		})
		d.status(t, bob, widgets, http.StatusForbidden)
		d.status(t, d.root, widgets, http.StatusOK)
	})
}

// asserting is a front proxy that sends X-Remote-User and X-Remote-Group.
type asserting struct {
	user, group string
	next        http.RoundTripper
}

func (a asserting) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Remote-User", a.user)
	r.Header.Set("X-Remote-Group", a.group)
	return a.next.RoundTrip(r)
}

// testModes checks what each --authorization-mode allows users without a role.
func testModes(t *testing.T, w *world) {
	server := w.extension(t, "widgets.example.com/v1")
	for _, tc := range []struct {
		args              []string
		widgets, services int // statuses for bob
	}{
		{nil, http.StatusForbidden, http.StatusForbidden},
		{[]string{"--authorization-mode=backend"}, http.StatusOK, http.StatusForbidden},
		{[]string{"--authorization-mode=AlwaysAllow"}, http.StatusOK, http.StatusOK},
	} {
		t.Run(strings.Join(append(tc.args, "mode"), " "), func(t *testing.T) {
			registry := t.TempDir()
			put(t, registry, server, "widgets.example.com", "")
			d := w.open(t, registry, tc.args...)
			d.becomes(t, d.root, widgets, http.StatusOK)
			bob := w.client(t, w.user(t, "bob"))
			d.status(t, bob, widgets, tc.widgets)
			d.status(t, bob, "/apis/apiregistration.k8s.io/v1/apiservices", tc.services)
			d.status(t, w.client(t, cluster.Credentials{}), widgets, http.StatusUnauthorized)
		})
	}
}
