package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A file that claims what the cluster has another serve is told of; a newer manifest of the same is
// not.
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
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
