//go:build e2e

package hostile

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/kubectl"
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

	kubectl kubectl.User // of an administrator, past Fairlead
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
	h.kubectl = kubectl.As(t, c.Endpoint(), c.Admin())
	h.kubectl.Run(t, "create", "clusterrole", "mirror", "--verb=*", "--resource=*.mirror.example.com")
	h.kubectl.Run(t, "create", "clusterrolebinding", "mirror", "--clusterrole=mirror", "--group=system:authenticated")
	h.kubectl.Run(t, "create", "clusterrolebinding", "wheel", "--clusterrole=cluster-admin", "--group=wheel")
	h.kubectl.Run(t, "create", "serviceaccount", "robot")
	// As a user of wheel, because Fairlead cannot impersonate system:masters.
	wheel := client(h.tls(h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "root", Organizations: []string{"wheel"}})), "h2")
	defer wheel.CloseIdleConnections()
	suite.Eventually(t, 30*time.Second, "mirror served", func() (bool, string) {
		status, body := alone.Get(t, wheel, h.front.Endpoint.URL+"/apis/mirror.example.com/v1")
		return status == http.StatusOK, body
	})
	return h
}

// mint creates unused tokens of the ServiceAccount robot.
func (h *harbour) mint(t *testing.T, n int) []string {
	t.Helper()
	var tokens []string
	for range n {
		tokens = append(tokens, strings.TrimSpace(h.kubectl.Run(t, "create", "token", "robot")))
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
