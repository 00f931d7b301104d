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

const (
	widgets   = "/apis/widgets.example.com/v1/widgets"
	tokenFile = "alice-token,alice,1,readers\nbob-token,bob,2\n"
)

func token(s string) cluster.Credentials { return cluster.Credentials{Token: s} }

// status sends a GET and compares the status.
func (d *door) status(t *testing.T, c *http.Client, path string, want int) {
	t.Helper()
	if got, body := d.ask(t, c, path); got != want {
		t.Errorf("GET %s: %d, want %d: %s", path, got, want, body)
	}
}

// becomes waits for a status.
func (d *door) becomes(t *testing.T, c *http.Client, path string, want int) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, http.StatusText(want), func() (bool, string) {
		got, body := d.ask(t, c, path)
		return got == want, body
	})
}

// testIdentity checks authentication and authorization without a cluster.
func testIdentity(t *testing.T, w *world) {
	registry, dir := t.TempDir(), t.TempDir()
	server, i := w.extension(t, "widgets.example.com/v1"), issuer.Start(t)
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
	suite.Put(t, filepath.Join(registry, "roles.yaml"), roles)
	suite.Put(t, filepath.Join(dir, "tokens.csv"), tokenFile)
	suite.Put(t, filepath.Join(dir, "config.yaml"), i.Config("oidc:")+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	fronts := pki.NewCA("front proxies of clients")
	d := w.open(t, registry, "--token-auth-file="+filepath.Join(dir, "tokens.csv"), "--authentication-config="+filepath.Join(dir, "config.yaml"),
		"--requestheader-client-ca-file="+alone.Bundle(t, fronts), "--requestheader-allowed-names=door")
	d.becomes(t, d.root, widgets, http.StatusOK)
	alice, bob := w.client(t, token("alice-token")), w.client(t, token("bob-token"))
	jane := w.client(t, token(i.Token(t, nil)))

	t.Run("a token's user by a role", func(t *testing.T) { d.status(t, alice, widgets, http.StatusOK) })
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
	t.Run("no role", func(t *testing.T) { d.status(t, bob, widgets, http.StatusForbidden) })
	t.Run("not this verb", func(t *testing.T) {
		if _, errs, code := d.as(t, token("alice-token")).try(t, "delete", "widgets.widgets.example.com", "--all", "-n", "default"); code == 0 || !strings.Contains(errs, "Forbidden") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
	t.Run("kubectl", func(t *testing.T) {
		d.as(t, token("alice-token")).run(t, []string{"get", "widgets.widgets.example.com", "-n", "default", "-o", "name"}, "widget.widgets.example.com/")
	})
	t.Run("apiservices need a role too", func(t *testing.T) {
		d.status(t, alice, "/apis/apiregistration.k8s.io/v1/apiservices", http.StatusForbidden)
	})
	t.Run("a JWT", func(t *testing.T) { d.becomes(t, jane, widgets, http.StatusOK) })
	t.Run("a JWT of another audience", func(t *testing.T) {
		d.status(t, w.client(t, token(i.Token(t, map[string]any{"aud": "other"}))), widgets, http.StatusUnauthorized)
	})
	t.Run("an unknown token", func(t *testing.T) { d.status(t, w.client(t, token("none")), widgets, http.StatusUnauthorized) })
	t.Run("nothing", func(t *testing.T) { d.status(t, w.client(t, cluster.Credentials{}), widgets, http.StatusUnauthorized) })
	t.Run("nothing where the configuration allows it", func(t *testing.T) { d.status(t, w.client(t, cluster.Credentials{}), "/livez", http.StatusOK) })
	t.Run("a certificate", func(t *testing.T) { d.status(t, w.client(t, w.user(t, "carol", "readers")), widgets, http.StatusOK) })
	t.Run("a certificate without a role", func(t *testing.T) { d.status(t, w.client(t, w.user(t, "dave")), widgets, http.StatusForbidden) })
	t.Run("request headers", func(t *testing.T) {
		proxy := cluster.Credentials{Pair: alone.Pair(t, fronts, pki.Leaf{CommonName: "door"})}
		c := w.client(t, proxy)
		c.Transport = asserting{"erin", "readers", c.Transport}
		d.status(t, c, widgets, http.StatusOK)
	})
	t.Run("request headers of nobody's proxy", func(t *testing.T) {
		c := w.client(t, w.user(t, "dave"))
		c.Transport = asserting{"erin", "system:masters", c.Transport}
		d.status(t, c, widgets, http.StatusForbidden)
	})
	t.Run("impersonation", func(t *testing.T) {
		d.as(t, w.user(t, "root", "system:masters")).run(t, []string{"get", "widgets.widgets.example.com", "-A", "-o", "name", "--as=frank", "--as-group=readers"}, "widget")
	})
	t.Run("a role that goes", func(t *testing.T) {
		must.Do(t, os.Remove(filepath.Join(registry, "roles.yaml")))
		d.becomes(t, alice, widgets, http.StatusForbidden)
	})
	t.Run("a role that comes back", func(t *testing.T) {
		suite.Put(t, filepath.Join(registry, "roles.yaml"), roles)
		d.becomes(t, alice, widgets, http.StatusOK)
	})
	t.Run("a token that goes", func(t *testing.T) {
		suite.Put(t, filepath.Join(dir, "tokens.csv"), "bob-token,bob,2\n")
		d.becomes(t, alice, widgets, http.StatusUnauthorized)
	})
	t.Run("a broken file of tokens keeps the last good one", func(t *testing.T) {
		suite.Put(t, filepath.Join(dir, "tokens.csv"), "bob-token\n")
		suite.Eventually(t, 10*time.Second, "reported", func() (bool, string) { return strings.Contains(d.Log.String(), "line 1 has 1 columns"), d.Log.String() })
		d.status(t, bob, widgets, http.StatusForbidden)
	})
	t.Run("another prefix of the issuer's users", func(t *testing.T) {
		suite.Put(t, filepath.Join(dir, "config.yaml"), i.Config("new:"))
		admin := d.as(t, token(i.Token(t, nil)))
		suite.Eventually(t, 30*time.Second, "in force", func() (bool, string) {
			_, errs, _ := admin.try(t, "get", "--raw", "/apis/apiregistration.k8s.io/v1/apiservices")
			return strings.Contains(errs, `"new:jane"`), errs
		})
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
		name                        string
		args                        []string
		widgets, services, nobodies int // statuses for bob's widgets, bob's apiservices, and widgets without credentials
	}{
		{"default", nil, http.StatusForbidden, http.StatusForbidden, http.StatusUnauthorized},
		{"RBAC", []string{"--authorization-mode=RBAC"}, http.StatusForbidden, http.StatusForbidden, http.StatusUnauthorized},
		{"backend", []string{"--authorization-mode=backend"}, http.StatusOK, http.StatusForbidden, http.StatusUnauthorized},
		{"AlwaysAllow", []string{"--authorization-mode=AlwaysAllow"}, http.StatusOK, http.StatusOK, http.StatusUnauthorized},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := t.TempDir()
			suite.Put(t, filepath.Join(registry, "widgets.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
			d := w.open(t, registry, tc.args...)
			d.becomes(t, d.root, widgets, http.StatusOK)
			bob := w.client(t, w.user(t, "bob"))
			d.status(t, bob, widgets, tc.widgets)
			d.status(t, bob, "/apis/apiregistration.k8s.io/v1/apiservices", tc.services)
			d.status(t, w.client(t, cluster.Credentials{}), widgets, tc.nobodies)
		})
	}
}
