//go:build e2e

package rotation

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// remote is an extension server with its APIService.
type remote struct {
	*extension.Server
	w     *world
	name  string // of its Service, and of the ConfigMap that may hold its bundle
	group string

	old, new *pki.CA
}

// startRemote runs an extension server and registers it. annotations lack their prefix. With
// ca-from the bundle is in that ConfigMap, otherwise in the APIService. first is called before the
// server is registered.
func startRemote(t *testing.T, w *world, lane, name string, annotations map[string]string, first ...func(*remote)) *remote {
	t.Helper()
	r := &remote{w: w, name: name + "-" + lane, group: name + "." + lane + ".example.com", old: pki.NewCA("old-ca"), new: pki.NewCA("new-ca")}
	r.Server = must.Get(extension.New(extension.Config{
		GroupVersions: []string{r.group + "/v1"}, Names: []string{r.host()}, CA: r.old, Objects: 1,
		RequestHeaderCA: w.frontPool(), AllowedNames: []string{"kube-aggregator", "fairlead"}, RejectWith: 401,
	}))(t)
	t.Cleanup(r.Close)
	for _, f := range first {
		f(r)
	}
	port := int32(r.Port())
	must.Get(w.core.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: port}}},
	}, metav1.CreateOptions{}))(t)
	a := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + r.group, Annotations: map[string]string{}},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: r.name, Port: &port},
			Group:   r.group, Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: r.old.PEM(),
		},
	}
	for k, v := range annotations {
		a.Annotations["fairlead.dev/"+k] = v
	}
	if annotations["ca-from"] != "" {
		a.Spec.CABundle = nil
		w.object(t, r.name) // for the bundle, unless the annotation names another
		r.refer(t, r.old)
	}
	must.Get(w.services.ApiregistrationV1().APIServices().Create(t.Context(), a, metav1.CreateOptions{}))(t)
	return r
}

// caFrom returns the ca-from annotation for a remote called name.
func caFrom(lane, name string) map[string]string {
	return map[string]string{"ca-from": name + "-" + lane + "/ca.crt"}
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
func emitEvents(t *testing.T, w *world, remotes ...*remote) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() { // ends with ctx
		defer close(done)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, r := range remotes {
				r.Emit()
			}
			patch := fmt.Appendf(nil, `{"data":{"beat":"%d"}}`, n)
			if _, err := w.core.CoreV1().ConfigMaps("default").Patch(ctx, beat, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
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
