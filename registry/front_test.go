package registry

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// TestBehind builds APIServices that the cluster's aggregator sends to Fairlead.
func TestBehind(t *testing.T) {
	own := types.NamespacedName{Namespace: "kube-system", Name: "fairlead"}
	ca := string(pki.NewCA("real").PEM())
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		service     string // of the spec, in namespace extensions; empty: Fairlead's
		backend     string
		front       string
		pem         string
		insecure    bool
		reason      string
		problem     string
		cluster     apiregistrationv1.ConditionStatus // what its own aggregator says
		says        string
	}{
		{
			name: "adopted", annotations: map[string]string{behind.Service: "extensions/server-0:443", behind.Bundle: ca},
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443", pem: ca,
		},
		{
			name: "before its spec", annotations: map[string]string{behind.Service: "extensions/server-0:443", behind.Insecure: "true"}, service: "server-0",
			backend: "extensions/server-0:443", front: "extensions/server-0:443", insecure: true, problem: "which is not Fairlead's",
		},
		{
			name: "put back by its chart, with another CA", annotations: map[string]string{behind.Service: "extensions/server-0:443", behind.Bundle: ca}, service: "server-0",
			backend: "extensions/server-0:443", front: "extensions/server-0:443", insecure: true, problem: "which is not Fairlead's",
		},
		{
			name: "not adopted", service: "server-0", backend: "extensions/server-0:443", insecure: true,
		},
		{
			name: "the system's CAs", annotations: map[string]string{behind.Service: "extensions/server-0:443"},
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443",
		},
		{
			name: "a bundle wins", annotations: map[string]string{
				behind.Service: "extensions/server-0:443", behind.Insecure: "true", behind.Bundle: ca,
			},
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443", pem: ca,
		},
		{
			name: "no certificate trusts nobody", annotations: map[string]string{behind.Service: "extensions/server-0:443", behind.Bundle: "!!"},
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443", pem: "!!", reason: ReasonInvalidCABundle,
		},
		{
			name: "ca-from in the real namespace", annotations: map[string]string{behind.Service: "extensions/server-0:443", prefix + "ca-from": "ca/ca.crt"},
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443",
		},
		{name: "nobody said where", backend: "kube-system/fairlead:443", insecure: true, reason: ReasonServiceAccessError},
		{
			name: "a loop", annotations: map[string]string{behind.Service: "kube-system/fairlead:443"},
			backend: "kube-system/fairlead:443", front: "kube-system/fairlead:443", insecure: true, reason: ReasonServiceAccessError,
		},
		{
			name: "not a Service", annotations: map[string]string{behind.Service: "server-0"},
			backend: "kube-system/fairlead:443", insecure: true, reason: ReasonServiceAccessError, problem: "is not <namespace>/<service>:<port>",
		},
		{
			name: "a URL", annotations: map[string]string{prefix + "url": "https://10.0.0.9"},
			backend: "https://10.0.0.9:443", front: "kube-system/fairlead:443", insecure: true,
		},
		{
			name: "another's service", annotations: map[string]string{behind.Service: "extensions/server-0:443"}, service: "server-1",
			backend: "extensions/server-0:443", front: "extensions/server-1:443", problem: "which is not Fairlead's",
		},
		{
			name: "the cluster's own apiserver", annotations: map[string]string{behind.Service: "default/kubernetes:443"},
			backend: "kube-system/fairlead:443", insecure: true, reason: ReasonServiceAccessError, problem: "of an extension server",
		},
		{
			name: "the cluster agrees", annotations: map[string]string{behind.Service: "extensions/server-0:443"}, cluster: "True",
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443", says: "True, Reason: message",
		},
		{
			name: "the cluster does not reach Fairlead", annotations: map[string]string{behind.Service: "extensions/server-0:443"}, cluster: "False",
			backend: "extensions/server-0:443", front: "kube-system/fairlead:443", says: "False, Reason: message",
			problem: "the cluster sends it to service kube-system/fairlead:443, and its own condition says: False, Reason: message",
		},
		{
			name: "nobody is behind", annotations: map[string]string{behind.Service: "extensions/none:443"}, cluster: "False",
			backend: "extensions/none:443", front: "kube-system/fairlead:443", says: "False, Reason: message", reason: ReasonServiceNotFound,
		},
		{name: "not sent here", service: "server-0", cluster: "False", backend: "extensions/server-0:443", insecure: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := manyRemotes(2)
			in.Options = &Options{Front: own, AllowURLs: true}
			a := remoteService("behind.example.com", "v1", "server-0")
			a.ObjectMeta = metav1.ObjectMeta{Name: a.Name, Annotations: tt.annotations}
			if a.Spec.Service.Name = tt.service; tt.service == "" {
				a.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: own.Namespace, Name: own.Name}
			}
			if tt.cluster != "" {
				a.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: tt.cluster, Reason: "Reason", Message: "message"}}
			}
			strip(a)
			in.APIServices[a.Name] = a
			table := Build(in, nil)
			e := table.named(a.Name)
			if got := e.Backend.String(); got != tt.backend || e.Front != tt.front || e.Backend.CABundle != tt.pem || e.Backend.Insecure != tt.insecure {
				t.Errorf("backend %s, front %q, bundle %q, insecure %t, want %+v", got, e.Front, e.Backend.CABundle, e.Backend.Insecure, tt)
			}
			if e.Verdict.Reason != tt.reason {
				t.Errorf("verdict %+v, want %q", e.Verdict, tt.reason)
			}
			if problems := strings.Join(e.Problems, "; "); !strings.Contains(problems, tt.problem) || tt.problem == "" && tt.reason == "" && problems != "" {
				t.Errorf("problems %q, want %q", problems, tt.problem)
			}
			if e.FrontSays != tt.says {
				t.Errorf("the cluster says %q, want %q", e.FrontSays, tt.says)
			}
			sent := table.Sent().Entries()
			if is := len(sent) == 1 && sent[0] == e; is != (tt.front != "") {
				t.Errorf("sent here: %v, want %t", sent, tt.front != "")
			}
		})
	}
}

// TestBehindLocal annotates APIServices that name no Service. kube-apiserver keeps the spec of
// those of its own groups and of CustomResourceDefinitions, but not their annotations.
func TestBehindLocal(t *testing.T) {
	for _, group := range []string{"apps", "crd.example.com"} {
		in := manyRemotes(1)
		a := remoteService(group, "v1", "server-0")
		a.Annotations = map[string]string{behind.Service: "extensions/server-0:443"}
		a.Spec.Service, a.Spec.InsecureSkipTLSVerify = nil, false
		in.APIServices[a.Name] = a
		if e := Build(in, nil).named(a.Name); !e.Local() || !e.Verdict.Available() {
			t.Errorf("%s is served by %v: %+v", a.Name, e.Backend, e.Verdict)
		}
	}
}
