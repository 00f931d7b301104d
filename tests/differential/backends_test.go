//go:build e2e

package differential

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// priority holds the priorities of an APIService.
type priority struct {
	group, version int32
}

// extend starts an extension server in this process and registers its group-versions, the keys of
// where. Its Service is an ExternalName that leads to this machine, because Kubernetes refuses
// loopback addresses in EndpointSlices.
func (w *world) extend(t *testing.T, name string, cfg extension.Config, where map[string]priority) *extension.Server {
	t.Helper()
	cfg.Names, cfg.GroupVersions = []string{name + ".backends.svc"}, slices.Collect(maps.Keys(where))
	s := extension.Start(t, cfg)
	port := int32(s.Port())
	w.namespace(t, "backends")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: port}},
	}}
	must.Get(w.core.CoreV1().Services("backends").Create(t.Context(), service, metav1.CreateOptions{}))(t)
	for gv, at := range where {
		group, version, _ := strings.Cut(gv, "/")
		must.Get(w.services.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "backends", Name: name, Port: &port}, Group: group, Version: version,
				CABundle: s.CA.PEM(), GroupPriorityMinimum: at.group, VersionPriority: at.version,
			},
		}, metav1.CreateOptions{}))(t)
	}
	return s
}

func (w *world) namespace(t *testing.T, name string) {
	t.Helper()
	_, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
