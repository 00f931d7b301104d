package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

func lint(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	return run(t, stdin, append([]string{"lint"}, args...)...)
}

// served is an APIService, which may be Available, its Service and, with addresses, its EndpointSlice.
func served(name string, at net.Addr, status apiregistrationv1.ConditionStatus, spec corev1.ServiceSpec, endpoints ...discoveryv1.Endpoint) []apiserver.Object {
	port := int32(at.(*net.TCPAddr).Port)
	meta := metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	spec.Ports = []corev1.ServicePort{{Port: port}}
	all := []apiserver.Object{
		&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + name + ".example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: name + ".example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: name, Port: &port},
			},
			Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: status}}},
		},
		&corev1.Service{ObjectMeta: meta, Spec: spec},
	}
	if len(endpoints) == 0 {
		return all
	}
	return append(all, &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: endpoints})
}

// clusterOf serves handler until the test ends, and returns a kubeconfig for it.
func clusterOf(t *testing.T, handler http.Handler) string {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return kubeconfig(t, s)
}

func onLoopback() discoveryv1.Endpoint { return discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}} }

// Without arguments, lint checks kubectl's current cluster. Its advice for a dead backend is explain's.
func TestLintCurrentCluster(t *testing.T) {
	server, nobody := apiserver.New(), &net.TCPAddr{Port: 1}
	ip := corev1.ServiceSpec{ClusterIP: "10.96.0.9"}
	server.Put(served("widgets", nobody, apiregistrationv1.ConditionFalse, ip, onLoopback())...)
	t.Setenv("KUBECONFIG", clusterOf(t, server))
	want := "connection refused; run lint where Fairlead runs; there, " + advice.For("connection refused")
	check.Has(t, lint(t, "", "--allow-loopback-backends"), want)
	check.Lacks(t, lint(t, "kind: None", "-"), "refused") // a file alone is checked without a cluster
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	check.Same(t, "exit 2: nothing to check: give files, --kubeconfig or certificates\n", lint(t, ""), "nothing to check")
}

// What cannot be read is reported at once, with the reason and what to do about that.
func TestLintUnreadableCluster(t *testing.T) {
	for _, tt := range []struct {
		name, without string // the collection
		code          int
		do            string
	}{
		{"no rights", apiserver.Services, http.StatusForbidden, grant},
		{"unknown user", apiserver.APIServices, http.StatusUnauthorized, login},
		{"a front door without Services", apiserver.Services, http.StatusNotFound, ownAddress},
		{"overloaded", apiserver.Slices, http.StatusServiceUnavailable, ownAddress},
	} {
		server := apiserver.New()
		front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == tt.without {
				http.Error(w, "not here", tt.code)
				return
			}
			server.ServeHTTP(w, r)
		})
		begun := time.Now()
		out := lint(t, "", "--kubeconfig="+clusterOf(t, front))
		if !strings.Contains(out, "error: local apiserver: reading "+tt.without+": ") || !strings.Contains(out, "; "+tt.do+"\n") || time.Since(begun) > clusterTimeout/2 {
			t.Errorf("%s: after %s:\n%s", tt.name, time.Since(begun), out)
		}
	}
	check.Has(t, doFor(tls.RecordHeaderError{Msg: "x509: certificate signed by unknown authority"}, grant), "certificate-authority of the kubeconfig")
	check.Has(t, doFor(tls.RecordHeaderError{Msg: "getting credentials: exec: executable aws not found"}, grant), "the kubeconfig's plugin")
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
		server.Put(served(name, backend.Listener.Addr(), apiregistrationv1.ConditionTrue, corev1.ServiceSpec{ClusterIP: "10.96.0.9"}, onLoopback())...)
	}
	check.Lacks(t, lint(t, "", "--allow-loopback-backends", "--kubeconfig="+clusterOf(t, server)), "asking for its certificate")
}

// A backend that kube-apiserver can use causes at most a warning, and no advice to remove it, even
// if lint cannot reach it. If kube-apiserver cannot use it either, it is an error.
func TestLintSparesWhatIsUsed(t *testing.T) {
	backend := httptest.NewTLSServer(nil)
	t.Cleanup(backend.Close)
	takeAway := regexp.MustCompile(`(?i); .*\b(delete|uninstall|drop|remove|take \S+( \S+)? away)\b`)
	ip := corev1.ServiceSpec{ClusterIP: "10.96.0.9"}
	named := func(name string) corev1.ServiceSpec {
		return corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: name}
	}
	for _, tt := range []struct {
		name      string
		spec      corev1.ServiceSpec
		endpoints []discoveryv1.Endpoint
		flags     string
		want      string // the error, if kube-apiserver cannot use it. Empty: none
	}{
		{"a name of loopback", named("localhost"), nil, "", "localhost is a loopback name; "},
		{"the same, with the flag of serve", named("localhost"), nil, "--allow-loopback-backends", ""},
		{"a name that is not known here", named("api.invalid"), nil, "", ""},
		{"headless, by its address", corev1.ServiceSpec{ClusterIP: "None"}, nil, "--enable-aggregator-routing=false", "; "},
		{"no slice yet", ip, nil, "", "; "},
		{"endpoints out of reach", ip, []discoveryv1.Endpoint{{Addresses: []string{"169.254.1.1"}}}, "", "; "},
		{"endpoints that are not ready", ip, []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}, "", "; "},
	} {
		server := apiserver.New()
		kubeconfig := clusterOf(t, server)
		for usable, status := range map[bool]apiregistrationv1.ConditionStatus{true: apiregistrationv1.ConditionTrue, false: apiregistrationv1.ConditionFalse} {
			server.Put(served("widgets", backend.Listener.Addr(), status, tt.spec, tt.endpoints...)...)
			out := lint(t, "", strings.Fields("--kubeconfig="+kubeconfig+" "+tt.flags)...)
			if usable && (takeAway.MatchString(out) || strings.Contains(out, "error: ") || !strings.Contains(out, "its backend is not verified")) ||
				!usable && ((tt.want == "") == strings.Contains(out, "error: APIService") || !strings.Contains(out, tt.want)) {
				t.Errorf("%s, which kube-apiserver can use %v: found:\n%s", tt.name, usable, out)
			}
		}
	}
}

// A file that claims a group-version which the cluster serves from elsewhere is reported; a newer
// manifest of the same APIService is not.
func TestLintDoubled(t *testing.T) {
	server := apiserver.New()
	file := clusterOf(t, server)
	for _, tt := range []struct {
		name    string
		service *apiregistrationv1.ServiceReference
		want    string
	}{
		{"the same", &apiregistrationv1.ServiceReference{Namespace: "x", Name: "widgets-example-com"}, ""},
		{"another Service", &apiregistrationv1.ServiceReference{Namespace: "x", Name: "other"}, "the cluster has x/other:443 serve it, and x/widgets-example-com:443 claims it"},
		{"none", nil, "the local apiserver itself serves it, and x/widgets-example-com:443 claims it"},
	} {
		server.Put(&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1.widgets.example.com"}, Spec: apiregistrationv1.APIServiceSpec{Group: "widgets.example.com", Version: "v1", Service: tt.service},
		})
		out := lint(t, manifests.Remote("widgets.example.com", "192.0.2.1", ""), "--kubeconfig="+file, "-")
		if tt.want == "" == strings.Contains(out, "claims it") || !strings.Contains(out, tt.want) {
			t.Errorf("%s: want %q in:\n%s", tt.name, tt.want, out)
		}
	}
}

// A policy is checked with the cluster's APIServices and Services, wherever it is. With a faulty
// one the rest of the cluster is still checked.
func TestLintPolicy(t *testing.T) {
	backend := httptest.NewTLSServer(nil)
	t.Cleanup(backend.Close)
	server := apiserver.New()
	server.Put(served("widgets", backend.Listener.Addr(), apiregistrationv1.ConditionTrue, corev1.ServiceSpec{ClusterIP: "10.96.0.9"}, onLoopback())...)
	const head = "apiVersion: fairlead.dev/v1\nkind: Policy\nroutes:\n"
	const good = head + "- apiService: v1.widgets.example.com\n  backends: [{name: more, service: {namespace: ns, name: gone}, when: {users: [x]}}]\n- {apiService: v1.none.example.com, hidden: true}\n"
	file, bad := filepath.Join(t.TempDir(), "p.yaml"), filepath.Join(t.TempDir(), "bad.yaml")
	must.Do(t, os.WriteFile(file, []byte(good), 0o600))
	must.Do(t, os.WriteFile(bad, []byte(head+"- {apiService: none}\n"), 0o600))
	server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "policy"}, Data: map[string]string{"p.yaml": good}})
	kubeconfig := clusterOf(t, server)
	const notVerified = "APIService v1.widgets.example.com: its backend is not verified"
	for policy, want := range map[string][]string{
		file:                           {"error: " + file + ":6: routes[1].apiService: there is no APIService v1.none.example.com; ", `v1.widgets.example.com/more: ServiceNotFound: service/gone in "ns" is not present`},
		"configmap:kube-system/policy": {"error: configmap kube-system/policy p.yaml:6: routes[1].apiService: there is no APIService v1.none.example.com; ", `v1.widgets.example.com/more: ServiceNotFound: service/gone in "ns" is not present`},
		"configmap:kube-system/none":   {"error: configmap kube-system/none:1: ", "file does not exist", notVerified},
		"configmap:none":               {`exit 2: --policy "configmap:none" is not configmap:NAMESPACE/NAME`},
		bad:                            {"error: " + bad + ":4: routes[0].apiService: ", "is not <version>.<group>", notVerified},
	} {
		out := lint(t, "", "--allow-loopback-backends", "--kubeconfig="+kubeconfig, "--policy="+policy)
		check.Has(t, out, want...)
	}
}
