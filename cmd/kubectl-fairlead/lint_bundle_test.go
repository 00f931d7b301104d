package main

import (
	"errors"
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// A bundle is listed, as ClusterRole system:fairlead-ca-from allows, and not got: this server serves no single object.
func TestLintListsBundle(t *testing.T) {
	server, objects := apiserver.New(), served("widgets", &net.TCPAddr{Port: 1}, apiregistrationv1.ConditionTrue, corev1.ServiceSpec{ClusterIP: "10.96.0.9"})
	a := objects[0].(*apiregistrationv1.APIService)
	a.Annotations, a.Spec.Service.Namespace, a.Spec.InsecureSkipTLSVerify = map[string]string{"fairlead.dev/ca-from": "bundle/ca.crt"}, "kube-system", false
	objects[1].SetNamespace("kube-system")
	kubeconfig := clusterOf(t, server)
	server.Put(objects...)
	check.Has(t, lint(t, "", "--kubeconfig="+kubeconfig), `error: APIService v1.widgets.example.com: reading its bundle: configmaps "bundle" not found; make that ConfigMap`)
	server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bundle"}, Data: map[string]string{"ca.crt": "garbage"}})
	check.Has(t, lint(t, "", "--kubeconfig="+kubeconfig), "error: APIService v1.widgets.example.com: its CA bundle is not usable")
}

// One that may not be read needs that role, which deploy/base does not bind.
func TestLintForbiddenBundle(t *testing.T) {
	l := &linter{output: "text"}
	l.bundleOf("APIService v1.x", &registry.Backend{Namespace: "x", CAFrom: "ca/ca.crt"}, func(_, name string) (*corev1.ConfigMap, error) {
		return nil, apierrors.NewForbidden(corev1.Resource("configmaps"), name, errors.New("no role"))
	})
	check.Has(t, reported(l), `error: APIService v1.x: reading its bundle: configmaps "ca" is forbidden: no role; `, "ClusterRole system:fairlead-ca-from")
}
