//go:build e2e

package hostile

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// harbour is a real cluster with a Fairlead and an extension server that records its requests.
type harbour struct {
	*cluster.Cluster
	front  *cluster.Front
	remote *extension.Server
	outer  *pki.CA // signs the certificates of front proxies in front of Fairlead
}

const remotePath = "/apis/mirror.example.com/v1/namespaces/default/widgets"

// newHarbour starts one, whose users may use the mirror. If it impersonates, kube-apiserver trusts
// no front proxy.
func newHarbour(t *testing.T, w *world, impersonates bool) *harbour {
	t.Helper()
	cfg := cluster.Config{UIDHeaders: true}
	if impersonates {
		cfg.APIServerArgs = []string{"--requestheader-client-ca-file="}
	}
	c := suite.Start(t, cfg)
	h := &harbour{Cluster: c, outer: pki.NewCA("outer front proxies")}
	h.role(t, "mirror", rbacv1.PolicyRule{APIGroups: []string{"mirror.example.com"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	h.bind(t, "mirror", "mirror", rbacv1.Subject{Kind: "Group", Name: "system:authenticated"})
	h.bind(t, "wheel", "cluster-admin", rbacv1.Subject{Kind: "Group", Name: "wheel"})
	args := []string{"--requestheader-client-ca-file=" + alone.Bundle(t, h.outer), "--requestheader-allowed-names=outer", "--requestheader-uid-headers=X-Remote-Uid"}
	if impersonates {
		args = append(args, "--local-identity=impersonate", "--kubeconfig="+must.Get(c.Account(t.Context(), c.Endpoint(), "../../deploy", "managed"))(t))
	}
	h.front = must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin, Args: args}))(t)
	h.remote = extension.Start(t, extension.Config{
		GroupVersions: []string{"mirror.example.com/v1"}, CA: c.PKI.Serving.CA, Names: []string{"mirror.apps.svc"}, RequestHeaderCA: c.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized, Record: 64,
		Wrap: echo,
	})
	must.Do(t, c.Register(t.Context(), cluster.Backend{
		Namespace: "apps", Service: "mirror", Port: h.remote.Port(), CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"mirror.example.com/v1"},
	}))
	// As a user of wheel, because Fairlead cannot impersonate system:masters.
	wheel := client(h.tls(h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "root", Organizations: []string{"wheel"}})), "h2")
	defer wheel.CloseIdleConnections()
	suite.Eventually(t, 30*time.Second, "mirror served", func() (bool, string) {
		status, body := alone.Get(t, wheel, h.front.Endpoint.URL+"/apis/mirror.example.com/v1")
		return status == http.StatusOK, body
	})
	return h
}

func (h *harbour) role(t *testing.T, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
	must.Get(h.core(t).RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}))(t)
}

// bind binds a ClusterRole to subjects.
func (h *harbour) bind(t *testing.T, name, role string, who ...rbacv1.Subject) {
	t.Helper()
	must.Get(h.core(t).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}, Subjects: who,
	}, metav1.CreateOptions{}))(t)
}

func (h *harbour) core(t *testing.T) kubernetes.Interface {
	t.Helper()
	return must.Get(kubernetes.NewForConfig(h.Endpoint().RESTConfig(h.Admin())))(t)
}

// account creates the ServiceAccount of mint's tokens: no controller manager runs here.
func (h *harbour) account(t *testing.T) {
	t.Helper()
	must.Get(h.core(t).CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}))(t)
}

// mint creates unused tokens.
func (h *harbour) mint(t *testing.T, n int) []string {
	t.Helper()
	var tokens []string
	for range n {
		tokens = append(tokens, suite.Token(t, h.core(t), "default", "robot"))
	}
	return tokens
}

// tls is the configuration of connections to Fairlead with a key pair, or with none if it is nil.
func (h *harbour) tls(pair *pki.Pair) *tls.Config {
	c := &tls.Config{RootCAs: h.PKI.Serving.CA.Pool(), MinVersion: tls.VersionTLS12, ServerName: "127.0.0.1"}
	if pair != nil {
		p := pair.TLS()
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p, nil } // whatever CAs the server accepts
	}
	return c
}

// host is an endpoint's host:port.
func host(e cluster.Endpoint) string { return strings.TrimPrefix(e.URL, "https://") }
