//go:build e2e

package hostile

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

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
	// impersonates says that kube-apiserver trusts no front proxy, so Fairlead impersonates.
	impersonates bool
}

const remotePath = "/apis/mirror.example.com/v1/namespaces/default/widgets"

// newHarbour starts one. Discovery and Fairlead's own pages need a role, so that refusals name the
// caller.
func newHarbour(t *testing.T, w *world, impersonates bool) *harbour {
	t.Helper()
	cfg := cluster.Config{UIDHeaders: true}
	if impersonates {
		cfg.APIServerArgs = []string{"--requestheader-client-ca-file="}
	}
	c := suite.Start(t, cfg)
	h := &harbour{Cluster: c, outer: pki.NewCA("outer front proxies"), impersonates: impersonates}
	h.roles(t)
	args := []string{"--requestheader-client-ca-file=" + alone.Bundle(t, h.outer), "--requestheader-allowed-names=outer", "--requestheader-uid-headers=X-Remote-Uid"}
	if impersonates {
		args = append(args, "--local-identity=impersonate", "--kubeconfig="+h.ownAccount(t, t.TempDir()))
	}
	h.front = must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin, Args: args}))(t)
	h.remote = extension.Start(t, extension.Config{
		GroupVersions: []string{"mirror.example.com/v1"}, CA: c.PKI.Serving.CA, Names: []string{"mirror.apps.svc"}, RequestHeaderCA: c.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized, Record: 64,
	})
	must.Do(t, c.Register(t.Context(), cluster.Backend{
		Namespace: "apps", Service: "mirror", Port: h.remote.Port(), CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"mirror.example.com/v1"},
	}))
	h.await(t, "mirror.example.com/v1")
	return h
}

// await waits until a group-version is served to a user of wheel, because Fairlead cannot
// impersonate system:masters.
func (h *harbour) await(t *testing.T, groupVersion string) {
	t.Helper()
	c := client(h.tls(h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "root", Organizations: []string{"wheel"}})), "h2")
	defer c.CloseIdleConnections()
	suite.Eventually(t, 30*time.Second, groupVersion+" served", func() (bool, string) {
		status, body := (&visitor{client: c}).ask(t, http.MethodGet, h.front.Endpoint.URL+"/apis/"+groupVersion, "")
		return status == http.StatusOK, body
	})
}

// roles lets authenticated users use the mirror, and removes the roles to read documents.
func (h *harbour) roles(t *testing.T) {
	t.Helper()
	rbac := h.core(t).RbacV1()
	for _, name := range []string{"system:discovery", "system:public-info-viewer"} {
		must.Do(t, rbac.ClusterRoleBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	must.Get(rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mirror"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"mirror.example.com", "echo.example.com"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{}))(t)
	h.bind(t, "mirror", "mirror", rbacv1.Subject{Kind: "Group", Name: "system:authenticated"})
	h.bind(t, "wheel", "cluster-admin", rbacv1.Subject{Kind: "Group", Name: "wheel"})
}

// publish lets everybody read /readyz and /version again, which newHarbour forbids.
func (h *harbour) publish(t *testing.T) {
	t.Helper()
	h.bind(t, "public", "system:public-info-viewer", rbacv1.Subject{Kind: "Group", Name: "system:authenticated"}, rbacv1.Subject{Kind: "Group", Name: "system:unauthenticated"})
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

// ownAccount creates the ServiceAccount with which Fairlead impersonates (rules of decision 0027),
// and returns its kubeconfig: a plugin alternates two tokens, each for a second.
func (h *harbour) ownAccount(t *testing.T, dir string) string {
	t.Helper()
	rule := func(group, resources string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: strings.Split(resources, ","), Verbs: verbs}
	}
	must.Get(h.core(t).RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "fairlead"}, Rules: []rbacv1.PolicyRule{
		rule("apiregistration.k8s.io", "apiservices", "list", "watch"), rule("", "services,configmaps", "list", "watch"), rule("discovery.k8s.io", "endpointslices", "list", "watch"),
		rule("apiextensions.k8s.io", "customresourcedefinitions", "get", "list", "watch"), rule("authentication.k8s.io", "tokenreviews", "create"),
		rule("authorization.k8s.io", "subjectaccessreviews", "create"), rule("", "users,groups", "impersonate"),
		rule("authentication.k8s.io", "uids,userextras/authentication.kubernetes.io/credential-id,userextras/scopes.authorization.openshift.io,userextras/.", "impersonate"),
		{NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/readyz"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{}))(t)
	h.bind(t, "fairlead", "fairlead", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"})
	h.account(t)
	plugin, file := dir+"/plugin", dir+"/account.kubeconfig"
	tokens := h.mint(t, 2)
	script := fmt.Sprintf(`#!/bin/sh
now=$(date +%%s) token=%s
[ $((now %% 2)) = 0 ] && token=%s
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"expirationTimestamp":"'$(date -u -d @$((now+1)) +%%FT%%TZ)'","token":"'$token'"}}'
`, tokens[0], tokens[1])
	must.Do(t, errors.Join(os.WriteFile(plugin, []byte(script), 0o700), h.Endpoint().WriteKubeconfig(file, cluster.Credentials{})))
	kubeconfig := must.Get(clientcmd.LoadFromFile(file))(t)
	for _, user := range kubeconfig.AuthInfos {
		user.Exec = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: plugin, InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
	}
	must.Do(t, clientcmd.WriteToFile(*kubeconfig, file))
	return file
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

// named extracts the user from a refusal.
func named(body string) string {
	_, rest, ok := strings.Cut(body, `User \"`)
	if !ok {
		return fmt.Sprintf("nobody: %.100s", body)
	}
	name, _, _ := strings.Cut(rest, `\"`)
	return name
}
