//go:build e2e

package rotation

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
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
	fronts   *x509.CertPool // both
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := suite.Folder(t, "rotation")
	w := &world{frontCAs: [2]*pki.CA{pki.NewCA("front-proxy-ca-1"), pki.NewCA("front-proxy-ca-2")}}
	front := filepath.Join(dir, "front-proxy-ca.crt")
	cert, key := writePair(t, filepath.Join(dir, "aggregator"), w.frontCAs[0].Issue(pki.Leaf{CommonName: "kube-aggregator"}))
	suite.Put(t, front, pki.Bundle(w.frontCAs[:]...))
	w.fronts = suite.Pool(t, front)
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{
		"--requestheader-client-ca-file=" + front, "--requestheader-allowed-names=kube-aggregator,fairlead",
		"--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + key,
	}})
	w.binary = suite.Build(t, dir)
	rc := w.Endpoint().RESTConfig(w.Admin())
	w.core = must.Get(kubernetes.NewForConfig(rc))(t)
	w.services = must.Get(aggregator.NewForConfig(rc))(t)
	must.Get(w.core.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: beat}}, metav1.CreateOptions{}))(t)
	return w
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

// remote is an extension server with its APIService.
type remote struct {
	*extension.Server
	w     *world
	name  string // of its Service
	group string

	host     string // in its certificate
	old, new *pki.CA
}

// startRemote runs an extension server and registers it.
func startRemote(t *testing.T, w *world, name string, annotations map[string]string) *remote {
	t.Helper()
	r := &remote{w: w, name: name, group: name + ".example.com", host: name + ".default.svc"}
	r.old, r.new = pki.NewCA("old-ca"), pki.NewCA("new-ca")
	r.Server = extension.Start(t, extension.Config{
		GroupVersions: []string{r.group + "/v1"}, Names: []string{r.host}, CA: r.old, Objects: 1,
		RequestHeaderCA: w.fronts, AllowedNames: []string{"kube-aggregator", "fairlead"}, RejectWith: 401,
	})
	bundle := filepath.Join(w.Dir(), name+"-ca.crt")
	suite.Put(t, bundle, r.old.PEM())
	must.Do(t, w.Register(t.Context(), cluster.Backend{Namespace: "default", Service: r.name, Port: r.Port(), CAFile: bundle, GroupVersions: []string{r.group + "/v1"}, Annotations: annotations}))
	return r
}

// target is what the load requests from it.
func (r *remote) target() target {
	path := "/apis/" + r.group + "/v1/namespaces/default/widgets"
	return target{name: r.group, get: path + "/widget-000", watch: path + "?watch=1"}
}

// serve makes it present a certificate of ca on new connections.
func (r *remote) serve(ca *pki.CA) {
	r.SetPair(ca.Issue(pki.Leaf{CommonName: "extension", Names: []string{"localhost", "127.0.0.1", r.host}}))
}

// trust replaces caBundle.
func (r *remote) trust(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"caBundle":%q}}`, base64.StdEncoding.EncodeToString(pki.Bundle(cas...)))
	must.Get(r.w.services.ApiregistrationV1().APIServices().Patch(t.Context(), "v1."+r.group, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// emitEvents sends an event to every watch four times a second, until the test ends.
func emitEvents(t *testing.T, w *world, remotes []*remote) {
	t.Helper()
	must.Run(t, func(ctx context.Context) error {
		volley.Pace(ctx, 250*time.Millisecond, func(n int) {
			for _, r := range remotes {
				r.Emit()
			}
			patch := fmt.Appendf(nil, `{"data":{"beat":"%d"}}`, n)
			if _, err := w.core.CoreV1().ConfigMaps("default").Patch(ctx, beat, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
		return ctx.Err()
	})
}

// handled returns Fairlead's requests for widgets since a moment. Probes request documents, and
// kube-apiserver's certificate has another name.
func (r *remote) handled(since time.Time) []extension.Request {
	var out []extension.Request
	for _, q := range r.Requests() {
		if q.Time.After(since) && q.PeerName == "fairlead" && strings.Contains(q.Target, "/widgets") {
			out = append(out, q)
		}
	}
	return out
}
