//go:build e2e

package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/clock"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// namespace holds the Services of all backends.
const namespace = "faults"

// world is what all cases share: a cluster of two kube-apiservers, and credentials for it.
type world struct {
	*cluster.Cluster
	fairlead string // executable
	hosts    hosts
	clock    clock.Clock
	core     kubernetes.Interface
	groups   aggregator.Interface
	ca       *pki.CA // signs the serving certificates of extension servers
	caCert   string  // its files
	caKey    string
	admin    *tls.Config    // of a client in system:masters
	fronts   *x509.CertPool // verifies front proxies

	mu     sync.Mutex     // guards counts
	counts map[string]int // :: kind of name → how many exist
}

func newWorld(t *testing.T) *world {
	t.Helper()
	network(t)
	dir := suite.Folder(t, "faults")
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin")), ca: pki.NewCA("extension-ca"), counts: map[string]int{}}
	beside(t, w.clock.Run)
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServers: 2, APIServerArgs: []string{"--advertise-address=" + nodeAddress}})
	rc := w.Endpoint().RESTConfig(w.Admin())
	var err1, err2, err3 error
	w.core, err1 = kubernetes.NewForConfig(rc)
	w.groups, err2 = aggregator.NewForConfig(rc)
	w.caCert, w.caKey, err3 = w.ca.WriteFiles(dir, "extension-ca")
	must.Do(t, errors.Join(err1, err2, err3))
	w.fronts = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	w.admin = suite.TLS(t, w.Endpoint(), w.Admin())
	must.Get(w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	return w
}

// client is an HTTP/2 client with one connection, as a member of system:masters.
func (w *world) client() *http.Client { return h2Client(w.admin) }

func h2Client(c *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c.Clone(), ForceAttemptHTTP2: true, DisableCompression: true}}
}

// name returns a new name.
func (w *world) name(kind string) string { return kind + strconv.Itoa(w.number(kind)) }

// number counts names of a kind, from 1.
func (w *world) number(kind string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[kind]++
	return w.counts[kind]
}

// beside runs a function until the test ends, and waits for it to return.
func beside(t *testing.T, run func(ctx context.Context)) {
	t.Helper()
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended })
	go func() { defer close(ended); run(t.Context()) }()
}

// eventually polls until ok returns true, and returns that time. It fails after most, which is far
// beyond what callers assert.
func eventually(t *testing.T, most time.Duration, what string, ok func() bool) time.Time {
	t.Helper()
	suite.Eventually(t, most, what, func() (bool, string) { return ok(), "" })
	return time.Now()
}
