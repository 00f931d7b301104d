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
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
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
	proxy, liar := w.client(t, cluster.Credentials{Pair: alone.Pair(t, fronts, pki.Leaf{CommonName: "door"})}), w.client(t, w.user(t, "dave"))
	as := func(user, group string) http.Header {
		return http.Header{"X-Remote-User": {user}, "X-Remote-Group": {group}}
	}
	d.becomes(t, jane, widgets, http.StatusOK)
	for _, tc := range []struct {
		name   string
		who    *http.Client
		header http.Header
		path   string
		want   int
	}{
		{"a token's user by a role", w.client(t, token("alice-token")), nil, widgets, http.StatusOK},
		{"no role", bob, nil, widgets, http.StatusForbidden},
		{"a JWT of another audience", w.client(t, token(i.Token(t, map[string]any{"aud": "other"}))), nil, widgets, http.StatusUnauthorized},
		{"nothing", nobody, nil, widgets, http.StatusUnauthorized},
		{"nothing where the configuration allows it", nobody, nil, "/livez", http.StatusOK},
		{"request headers", proxy, as("erin", "readers"), widgets, http.StatusOK},
		{"request headers of nobody's proxy", liar, as("erin", "system:masters"), widgets, http.StatusForbidden},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if r := must.Get(ask.Do(t.Context(), tc.who, http.MethodGet, d.front.URL+tc.path, tc.header, ""))(t); r.Code != tc.want {
				t.Errorf("%d %s, want %d", r.Code, r.Body, tc.want)
			}
		})
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
