package main

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// land is a cluster of kubeadm with three control-plane nodes, as an administrator sees it before
// Fairlead is installed.
type land struct {
	user      string
	release   string
	server    string // of the kubeconfig
	nodes     []*corev1.Node
	pods      []*corev1.Pod
	slices    *discoveryv1.EndpointSlice
	more      []runtime.Object
	granted   func(user string, r *authorizationv1.ResourceAttributes) bool
	forbidden string // a resource
	undecided string // why an authorizer cannot decide
}

// newLand starts a server with a kube-apiserver's certificate on each node.
func newLand(t *testing.T, names ...string) *land {
	t.Helper()
	l := &land{user: "kubernetes-admin", release: "v1.37.2", server: "https://127.0.0.1:6443", granted: none}
	leaf := pki.NewCA("ca").Issue(pki.Leaf{CommonName: "kube-apiserver", Names: append([]string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, names...)})
	port := "0"
	l.slices = &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}, AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, address := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		must.Do(t, s.Listener.Close())
		s.Listener = must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address, port)))(t)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{leaf.TLS()}}
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // whoever has seen the certificate hangs up
		s.StartTLS()
		t.Cleanup(s.Close)
		_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
		name := "cp" + strconv.Itoa(i+1)
		l.nodes = append(l.nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}},
		})
		l.pods = append(l.pods, static(name, "kube-apiserver", "--requestheader-allowed-names=front-proxy-client", "--secure-port=6443"))
		l.slices.Endpoints = append(l.slices.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	number := int32(must.Get(strconv.Atoi(port))(t))
	l.slices.Ports = []discoveryv1.EndpointPort{{Port: &number}}
	return l
}

// static is a static pod, as the cluster shows it.
func static(node, component string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: component + "-" + node, Labels: map[string]string{"component": component}},
		Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Command: append([]string{component}, command...)}}},
	}
}

// runs is a Fairlead on a node.
func runs(node string, args ...string) *corev1.Pod {
	p := static(node, "fairlead", args...)
	p.Labels = map[string]string{"app.kubernetes.io/name": "fairlead"}
	return p
}

func account() runtime.Object {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "fairlead"}}
}
