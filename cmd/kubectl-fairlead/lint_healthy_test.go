package main

import (
	"encoding/base64"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// spares checks that a healthy configuration causes no error and no advice to remove it.
func spares(t *testing.T, out string) {
	t.Helper()
	takeAway := regexp.MustCompile(`(?i)\b(delete|uninstall|drop|remove|take \S+( \S+)? away)\b`)
	for line := range strings.Lines(out) {
		_, advice, _ := strings.Cut(line, "; ")
		advice = strings.ReplaceAll(advice, "remove insecureSkipTLSVerify", "") // a field's name
		if strings.HasPrefix(line, "error: ") || takeAway.MatchString(advice) {
			t.Errorf("reported for a healthy configuration: %s", line)
		}
	}
}

// Files that look odd but work are not reported: the cluster may have what they lack.
func TestLintSparesFiles(t *testing.T) {
	ca := "  caBundle: " + base64.StdEncoding.EncodeToString(pki.NewCA("extension-ca").PEM())
	both := "  caBundle: " + base64.StdEncoding.EncodeToString(append(pki.NewCA("old-ca").PEM(), pki.NewCA("new-ca").PEM()...))
	alone, _, _ := strings.Cut(manifestOf(ca), "---")
	for name, in := range map[string]string{
		"no Service beside it":        alone,
		"a Service of localhost":      manifestOf(ca, "  ports: [{port: 443}]\n  type: ExternalName\n  externalName: localhost"),
		"a headless Service":          manifestOf(ca, "  ports: [{port: 443}]\n  clusterIP: None"),
		"a Service without pods":      manifestOf(ca, "  ports: [{port: 443}]\n  selector: {}"),
		"endpoints that are not up":   manifestOf(ca) + "---\n" + `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: ns, name: w, labels: {kubernetes.io/service-name: widgets}}, addressType: IPv4, ports: [{port: 443}], endpoints: [{addresses: [192.0.2.1], conditions: {ready: false}}]}`,
		"loopback endpoints":          manifestOf(ca) + "---\n" + `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: ns, name: w, labels: {kubernetes.io/service-name: widgets}}, addressType: IPv4, ports: [{port: 443}], endpoints: [{addresses: [127.0.0.1]}]}`,
		"two CAs, of a rotation":      manifestOf(both),
		"the system's roots":          manifestOf("  caBundle:"),
		"not verified":                manifestOf("  caBundle:", "  versionPriority: 10\n  insecureSkipTLSVerify: true"),
		"in maintenance":              manifestOf(ca, "    fairlead.dev/request-timeout: 30s\n    fairlead.dev/maintenance: \"moving house\""),
		"no namespace":                strings.ReplaceAll(manifestOf(ca), "metadata: {namespace: ns, name: widgets}", "metadata: {name: widgets}"),
		"Local":                       "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.apps}\nspec: {group: apps, version: v1, groupPriorityMinimum: 17800, versionPriority: 15}\n",
		"what Fairlead does not read": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: widgets}\n",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := lint(t, in, "-")
			if spares(t, out); err != nil {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A backend that kube-apiserver can use causes at most a warning, even if lint cannot reach it.
func TestLintSparesWhatIsUsed(t *testing.T) {
	backend := httptest.NewTLSServer(nil)
	t.Cleanup(backend.Close)
	_, text := must.Get2(net.SplitHostPort(backend.Listener.Addr().String()))(t)
	listening := must.Get(strconv.Atoi(text))(t)
	for _, tt := range []struct {
		name  string
		spec  corev1.ServiceSpec
		slice *discoveryv1.EndpointSlice
		args  []string
		works bool // even if kube-apiserver cannot use it
	}{
		{"a name of loopback", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}, nil, nil, false},
		{"the same, with the flag of serve", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}, nil, []string{"--allow-loopback-backends"}, true},
		{"a name that is not known here", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "api.invalid"}, nil, nil, true},
		{"headless, by its address", corev1.ServiceSpec{ClusterIP: "None"}, nil, []string{"--enable-aggregator-routing=false"}, false},
		{"no slice yet", corev1.ServiceSpec{ClusterIP: "10.96.0.9"}, nil, nil, false},
		{"endpoints out of reach", corev1.ServiceSpec{ClusterIP: "10.96.0.9"}, &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"169.254.1.1"}}}}, nil, false},
		{"endpoints that are not ready", corev1.ServiceSpec{ClusterIP: "10.96.0.9"}, &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := apiserver.New()
			port := int32(listening)
			object := &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{Name: "v1.widgets.example.com"},
				Spec: apiregistrationv1.APIServiceSpec{
					Group: "widgets.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
					Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "widgets", Port: &port},
				},
				Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}},
			}
			tt.spec.Ports = []corev1.ServicePort{{Port: port}}
			server.Put(object, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "widgets"}, Spec: tt.spec})
			if tt.slice != nil {
				tt.slice.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "w", Labels: map[string]string{discoveryv1.LabelServiceName: "widgets"}}
				tt.slice.AddressType, tt.slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Port: &port}}
				server.Put(tt.slice)
			}
			args := append([]string{"--kubeconfig=" + kubeconfigOf(t, server)}, tt.args...)
			out, err := lint(t, "", args...)
			if spares(t, out); err != nil || !strings.Contains(out, "its backend is not verified") {
				t.Errorf("error %v, found:\n%s", err, out)
			}
			// If kube-apiserver cannot use it either, it is an error.
			object = object.DeepCopy()
			object.Status.Conditions[0].Status = apiregistrationv1.ConditionFalse
			server.Put(object)
			out, _ = lint(t, "", args...)
			if tt.works == strings.Contains(out, "error: APIService") {
				t.Errorf("kube-apiserver cannot use it, found:\n%s", out)
			}
		})
	}
}

// A file that claims a group-version which the cluster serves from elsewhere is reported; a newer
// manifest of the same APIService is not.
func TestLintDoubled(t *testing.T) {
	server := apiserver.New()
	file := kubeconfigOf(t, server)
	theirs := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.widgets.example.com"}, Spec: apiregistrationv1.APIServiceSpec{Group: "widgets.example.com", Version: "v1"}}
	for _, tt := range []struct {
		name    string
		service *apiregistrationv1.ServiceReference
		want    string
	}{
		{"the same", &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "widgets"}, ""},
		{"another Service", &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "other"}, "the cluster has ns/other:443 serve it, and ns/widgets:443 claims it"},
		{"none", nil, "the local apiserver itself serves it, and ns/widgets:443 claims it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := theirs.DeepCopy()
			now.Spec.Service = tt.service
			server.Put(now)
			out := lintText(t, manifestOf("  caBundle: "+base64.StdEncoding.EncodeToString(pki.NewCA("ca").PEM())), "--kubeconfig="+file, "-")
			if tt.want == "" == strings.Contains(out, "claims it") || !strings.Contains(out, tt.want) {
				t.Errorf("want %q in:\n%s", tt.want, out)
			}
		})
	}
}

func kubeconfigOf(t *testing.T, server *apiserver.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := "{clusters: [{name: a, cluster: {server: " + server.Start(t).Host + "}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}"
	must.Do(t, os.WriteFile(file, []byte(config), 0o600))
	return file
}
