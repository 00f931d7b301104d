//go:build e2e

package rotation

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// remote is an extension server with its APIService.
type remote struct {
	*extension.Server
	w     *world
	name  string // of its Service, and of the ConfigMap that may hold its bundle
	group string

	old, new *pki.CA
}

// startRemote runs an extension server and registers it. With ca-from the bundle is in that
// ConfigMap, otherwise in the APIService.
func startRemote(t *testing.T, w *world, name string, annotations map[string]string) *remote {
	t.Helper()
	r := &remote{w: w, name: name, group: name + ".example.com", old: pki.NewCA("old-ca"), new: pki.NewCA("new-ca")}
	r.Server = extension.Start(t, extension.Config{
		GroupVersions: []string{r.group + "/v1"}, Names: []string{r.host()}, CA: r.old, Objects: 1,
		RequestHeaderCA: w.frontPool(), AllowedNames: []string{"kube-aggregator", "fairlead"}, RejectWith: 401,
	})
	bundle := filepath.Join(w.Dir(), name+"-ca.crt")
	suite.Put(t, bundle, r.old.PEM())
	if annotations["fairlead.dev/ca-from"] != "" {
		bundle = os.DevNull
		w.object(t, r.name)
		r.refer(t, r.old)
	}
	must.Do(t, w.Register(t.Context(), cluster.Backend{Namespace: "default", Service: r.name, Port: r.Port(), CAFile: bundle, GroupVersions: []string{r.group + "/v1"}, Annotations: annotations}))
	return r
}

// host is the name in its certificate.
func (r *remote) host() string { return r.name + ".default.svc" }

// target is what the load requests from it.
func (r *remote) target() target {
	path := "/apis/" + r.group + "/v1/namespaces/default/widgets"
	return target{name: r.group, get: path + "/widget-000", watch: path + "?watch=1"}
}

// serve makes it present a certificate of ca on new connections.
func (r *remote) serve(ca *pki.CA) {
	r.SetPair(ca.Issue(pki.Leaf{CommonName: "extension", Names: []string{"localhost", "127.0.0.1", r.host()}}))
}

// trust replaces caBundle.
func (r *remote) trust(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"caBundle":%q}}`, base64.StdEncoding.EncodeToString(pki.Bundle(cas...)))
	must.Get(r.w.services.ApiregistrationV1().APIServices().Patch(t.Context(), "v1."+r.group, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// refer replaces the bundle in the ConfigMap.
func (r *remote) refer(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"data":{"ca.crt":%q}}`, pki.Bundle(cas...))
	must.Get(r.w.core.CoreV1().ConfigMaps("default").Patch(t.Context(), r.name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// emitEvents sends an event to every watch four times a second, until the test ends.
func emitEvents(t *testing.T, w *world, remotes []*remote) {
	t.Helper()
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended })
	ctx := t.Context()
	go func() { // ends with the test
		defer close(ended)
		volley.Pace(ctx, 250*time.Millisecond, func(n int) {
			for _, r := range remotes {
				r.Emit()
			}
			patch := fmt.Appendf(nil, `{"data":{"beat":"%d"}}`, n)
			if _, err := w.core.CoreV1().ConfigMaps("default").Patch(ctx, beat, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}()
}

// handled returns Fairlead's requests for widgets since a moment. Probes request documents, and
// kube-apiserver's certificate has another name.
func (r *remote) handled(since time.Time) []extension.Request {
	var out []extension.Request
	for _, q := range r.Requests(0) {
		if q.Time.After(since) && q.PeerName == "fairlead" && strings.Contains(q.Target, "/widgets") {
			out = append(out, q)
		}
	}
	return out
}
