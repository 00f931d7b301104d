package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// served is an APIService with an endpoint on loopback.
func served(name string, port int32) []apiserver.Object {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	return []apiserver.Object{
		&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + name + ".example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: name + ".example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: name, Port: &port},
			},
		},
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Port: port}}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}},
		},
	}
}

// Without arguments, lint checks kubectl's current cluster. Its advice for a dead backend is
// explain's.
func TestLintCurrentCluster(t *testing.T) {
	server := apiserver.New()
	closed := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := int32(closed.Addr().(*net.TCPAddr).Port)
	_ = closed.Close()
	server.Put(served("widgets", port)...)
	t.Setenv("KUBECONFIG", kubeconfigOf(t, server))
	want := "connection refused; run lint where Fairlead runs; there, " + advice.For("connection refused")
	if out := lintText(t, "", "--allow-loopback-backends"); !strings.Contains(out, want) {
		t.Errorf("want %q in:\n%s", want, out)
	}
	if out := lintText(t, "kind: None", "-"); strings.Contains(out, "refused") {
		t.Errorf("a file alone must be checked without a cluster, found:\n%s", out)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	if out, err := lint(t, ""); !cli.IsUsage(err) {
		t.Errorf("error %v, want a usage error: there is nothing to check\n%s", err, out)
	}
}

// What cannot be read is reported at once, with the reason and what to do about that.
func TestLintUnreadableCluster(t *testing.T) {
	for _, tt := range []struct {
		name, without string // the collection
		code          int
		do            string
	}{
		{"no rights", apiserver.Services, http.StatusForbidden, giveRole},
		{"unknown user", apiserver.APIServices, http.StatusUnauthorized, giveRole},
		{"a front door without Services", apiserver.Services, http.StatusNotFound, ownAddress},
		{"overloaded", apiserver.Slices, http.StatusServiceUnavailable, ownAddress},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := apiserver.New()
			front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == tt.without {
					http.Error(w, "not here", tt.code)
					return
				}
				server.ServeHTTP(w, r)
			}))
			t.Cleanup(front.Close)
			begun := time.Now()
			out := lintText(t, "", "--kubeconfig="+kubeconfig(t, front))
			says(t, out, "error: local apiserver: reading "+tt.without+": ", "; "+tt.do+"\n")
			if took := time.Since(begun); took > clusterTimeout/2 {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// A backend that Fairlead must not dial is not said to be down.
func TestLintRefusedName(t *testing.T) {
	server := apiserver.New()
	all := served("widgets", 443)
	all[1].(*corev1.Service).Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	server.Put(all...)
	out := lintText(t, "", "--kubeconfig="+kubeconfigOf(t, server))
	says(t, out, "localhost is a loopback name; ", "--allow-loopback-backends")
}

// All backends are asked at once: each of these presents its certificate when all have been asked,
// and one that is asked alone hangs.
func TestLintAsksAtOnce(t *testing.T) {
	server := apiserver.New()
	names := []string{"gadgets", "gizmos", "widgets"}
	var asked sync.WaitGroup
	asked.Add(len(names))
	for _, name := range names {
		backend := httptest.NewUnstartedServer(nil)
		backend.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			asked.Done()
			asked.Wait()
			return nil, nil
		}}
		backend.StartTLS()
		t.Cleanup(backend.Close)
		server.Put(served(name, int32(backend.Listener.Addr().(*net.TCPAddr).Port))...)
	}
	if out := lintText(t, "", "--allow-loopback-backends", "--kubeconfig="+kubeconfigOf(t, server)); strings.Contains(out, "asking for its certificate") {
		t.Errorf("one that hangs delayed the others:\n%s", out)
	}
}
