//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// harbour is a real cluster with a Fairlead and an extension server that tells what it was told.
type harbour struct {
	*cluster.Cluster
	front  *cluster.Front
	remote *extension.Server
	outer  *pki.CA // vouches for front proxies in front of Fairlead
}

// remotePath is the extension server's.
const remotePath = "/apis/mirror.example.com/v1/namespaces/default/widgets"

// newHarbour starts one. Nobody may read discovery or own pages without a role, so that refusals name who asked.
func newHarbour(t *testing.T, w *world) *harbour {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Config{UIDHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h := &harbour{Cluster: c, outer: pki.NewCA("outer front proxies")}
	dir := t.TempDir()
	outer := dir + "/outer.pem"
	if err := os.WriteFile(outer, h.outer.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	h.front, err = c.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin, Args: []string{
		"--requestheader-client-ca-file=" + outer, "--requestheader-allowed-names=outer", "--requestheader-uid-headers=X-Remote-Uid",
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.remote = extension.Start(t, extension.Config{
		GroupVersions: []string{"mirror.example.com/v1"}, CA: c.PKI.Serving.CA, Names: []string{"mirror.apps.svc"}, RequestHeaderCA: c.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized, Record: 64,
	})
	u, err := url.Parse(h.remote.URL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	err = c.Register(t.Context(), cluster.Backend{Namespace: "apps", Service: "mirror", Port: port, CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"mirror.example.com/v1"}})
	if err != nil {
		t.Fatal(err)
	}
	h.roles(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.WaitAvailable(ctx, h.front.Endpoint, "mirror.example.com/v1"); err != nil {
		t.Fatal(err)
	}
	return h
}

// roles lets everybody who is authenticated use the mirror, and nobody read documents.
func (h *harbour) roles(t *testing.T) {
	t.Helper()
	core, err := kubernetes.NewForConfig(h.Endpoint().RESTConfig(h.Admin()))
	if err != nil {
		t.Fatal(err)
	}
	rbac := core.RbacV1()
	for _, name := range []string{"system:discovery", "system:public-info-viewer"} {
		if err := rbac.ClusterRoleBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err1 := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mirror"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"mirror.example.com", "echo.example.com"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{})
	_, err2 := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mirror"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "mirror"},
		Subjects: []rbacv1.Subject{{Kind: "Group", Name: "system:authenticated"}},
	}, metav1.CreateOptions{})
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
}

// tls is how somebody with a key pair connects to Fairlead. Nil: without.
func (h *harbour) tls(pair *pki.Pair) *tls.Config {
	c := &tls.Config{RootCAs: h.PKI.Serving.CA.Pool(), MinVersion: tls.VersionTLS12, ServerName: "127.0.0.1"}
	if pair != nil {
		p := pair.TLS()
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p, nil } // whatever the server says it would accept
	}
	return c
}

// host is an endpoint's host:port.
func host(e cluster.Endpoint) string { return strings.TrimPrefix(e.URL, "https://") }

// named is who a refusal says that one is.
func named(body string) string {
	_, rest, ok := strings.Cut(body, `User \"`)
	if !ok {
		return fmt.Sprintf("nobody: %.100s", body)
	}
	name, _, _ := strings.Cut(rest, `\"`)
	return name
}
