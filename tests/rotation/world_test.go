//go:build e2e

package rotation

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// beat is the ConfigMap at the local apiserver that the load reads and watches.
const beat = "beat"

// world is a cluster, and the request-header CAs that its servers trust.
type world struct {
	*cluster.Cluster

	binary   string // Fairlead
	core     kubernetes.Interface
	services aggregator.Interface
	// frontCAs sign the front proxies that kube-apiserver and the extension servers trust: both, so
	// that Fairlead's pair can move from one to the other.
	frontCAs [2]*pki.CA
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := suite.Folder(t, "rotation")
	w := &world{frontCAs: [2]*pki.CA{pki.NewCA("front-proxy-ca-1"), pki.NewCA("front-proxy-ca-2")}}
	front := filepath.Join(dir, "front-proxy-ca.crt")
	cert, key := writePair(t, filepath.Join(dir, "aggregator"), w.frontCAs[0].Issue(pki.Leaf{CommonName: "kube-aggregator"}))
	suite.Put(t, front, pki.Bundle(w.frontCAs[:]...))
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{
		"--requestheader-client-ca-file=" + front, "--requestheader-allowed-names=kube-aggregator,fairlead",
		"--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + key,
	}})
	w.binary = suite.Build(t, dir)
	rc := w.Endpoint().RESTConfig(w.Admin())
	w.core = must.Get(kubernetes.NewForConfig(rc))(t)
	w.services = must.Get(aggregator.NewForConfig(rc))(t)
	w.object(t, beat)
	return w
}

func (w *world) object(t *testing.T, name string) {
	t.Helper()
	must.Get(w.core.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
}

// frontPool verifies front proxies for extension servers.
func (w *world) frontPool() *x509.CertPool {
	pool := w.frontCAs[0].Pool()
	pool.AddCert(w.frontCAs[1].Certificate)
	return pool
}

// writePair writes the files <base>.crt and <base>.key as careless tools do: in place, and the key
// long before its certificate.
func writePair(t *testing.T, base string, pair *pki.Pair) (cert, key string) {
	t.Helper()
	cert, key = base+".crt", base+".key"
	must.Do(t, os.WriteFile(key, pair.KeyPEM(), 0o600))
	suite.Pause(t, 50*time.Millisecond)
	must.Do(t, os.WriteFile(cert, pair.CertPEM(), 0o600))
	return cert, key
}
