//go:build e2e

package directory

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/issuer"
	"github.com/fairlead-proxy/fairlead/tests/must"
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

// testIdentity checks authentication and authorization without a cluster, as the files change.
func testIdentity(t *testing.T, w *world) {
	registry, dir := t.TempDir(), t.TempDir()
	server, i := w.extension(t, "widgets.example.com/v1"), issuer.Start(t)
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
	suite.Put(t, filepath.Join(registry, "roles.yaml"), roles)
	suite.Put(t, filepath.Join(dir, "tokens.csv"), "alice-token,alice,1,readers\nbob-token,bob,2\n")
	suite.Put(t, filepath.Join(dir, "config.yaml"), i.Config("oidc:")+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	fronts := pki.NewCA("front proxies of clients")
	d := w.open(t, registry, "--token-auth-file="+filepath.Join(dir, "tokens.csv"), "--authentication-config="+filepath.Join(dir, "config.yaml"),
		"--requestheader-client-ca-file="+alone.Bundle(t, fronts), "--requestheader-allowed-names=door")
	d.becomes(t, d.root, widgets, http.StatusOK)
	alice, bob := w.client(t, token("alice-token")), w.client(t, token("bob-token"))
	jane, nobody := w.client(t, token(i.Token(t, nil))), w.client(t, cluster.Credentials{})
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
		{"a token's user by a role", alice, widgets, http.StatusOK},
		{"apiservices need a role too", alice, "/apis/apiregistration.k8s.io/v1/apiservices", http.StatusForbidden},
		{"no role", bob, widgets, http.StatusForbidden},
		{"a JWT of another audience", w.client(t, token(i.Token(t, map[string]any{"aud": "other"}))), widgets, http.StatusUnauthorized},
		{"an unknown token", w.client(t, token("none")), widgets, http.StatusUnauthorized},
		{"nothing", nobody, widgets, http.StatusUnauthorized},
		{"nothing where the configuration allows it", nobody, "/livez", http.StatusOK},
		{"a certificate", w.client(t, w.user(t, "carol", "readers")), widgets, http.StatusOK},
		{"a certificate without a role", w.client(t, w.user(t, "dave")), widgets, http.StatusForbidden},
		{"request headers", proxy, widgets, http.StatusOK},
		{"request headers of nobody's proxy", liar, widgets, http.StatusForbidden},
	} {
		t.Run(tc.name, func(t *testing.T) { d.status(t, tc.who, tc.path, tc.want) })
	}
	t.Run("what the backend is told", func(t *testing.T) {
		server.Forget()
		d.status(t, alice, widgets+"?limit=7", http.StatusOK)
		for _, r := range server.Requests(0) {
			if h := r.Header; strings.Contains(r.Target, "limit=7") {
				if h.Get("X-Remote-User") != "alice" || !strings.Contains(strings.Join(h.Values("X-Remote-Group"), " "), "readers") || h.Get("Authorization") != "" {
					t.Errorf("headers %v", h)
				}
				return
			}
		}
		t.Error("the request did not arrive")
	})
	t.Run("impersonation", func(t *testing.T) {
		k := w.as(t, d.front, w.user(t, "root", "system:masters"))
		k.run(t, []string{"get", "widgets.widgets.example.com", "-A", "-o", "name", "--as=frank", "--as-group=readers"}, "widget")
	})
	t.Run("a role goes and comes back", func(t *testing.T) {
		must.Do(t, os.Remove(filepath.Join(registry, "roles.yaml")))
		d.becomes(t, alice, widgets, http.StatusForbidden)
		suite.Put(t, filepath.Join(registry, "roles.yaml"), roles)
		d.becomes(t, alice, widgets, http.StatusOK)
	})
	t.Run("a token goes, and a broken file keeps the rest", func(t *testing.T) {
		suite.Put(t, filepath.Join(dir, "tokens.csv"), "bob-token,bob,2\n")
		d.becomes(t, alice, widgets, http.StatusUnauthorized)
		suite.Put(t, filepath.Join(dir, "tokens.csv"), "bob-token\n")
		suite.Eventually(t, 10*time.Second, "reported", func() (bool, string) { return strings.Contains(d.Log.String(), "line 1 has 1 columns"), d.Log.String() })
		d.status(t, bob, widgets, http.StatusForbidden)
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
			suite.Put(t, filepath.Join(registry, "widgets.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
			d := w.open(t, registry, tc.args...)
			d.becomes(t, d.root, widgets, http.StatusOK)
			bob := w.client(t, w.user(t, "bob"))
			d.status(t, bob, widgets, tc.widgets)
			d.status(t, bob, "/apis/apiregistration.k8s.io/v1/apiservices", tc.services)
			d.status(t, w.client(t, cluster.Credentials{}), widgets, http.StatusUnauthorized)
		})
	}
}
