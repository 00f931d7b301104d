package registry_test

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A table is built from objects and resolves paths. The same objects give the same table.
func ExampleBuild() {
	metrics := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "metrics.k8s.io", Version: "v1beta1", GroupPriorityMinimum: 100, VersionPriority: 100,
			Service: &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"},
		},
	}
	in := registry.Input{APIServices: map[string]*apiregistrationv1.APIService{metrics.Name: metrics}, Complete: true}
	table := registry.Build(in, nil)

	m := table.Match("/apis/metrics.k8s.io/v1beta1/nodes")
	fmt.Println(m.Route == registry.RouteRemote, m.Entry.Name, m.Entry.Backend.ServerName)
	fmt.Println(m.Entry.Verdict.Reason, m.Entry.Verdict.Message)
	fmt.Println(table.Match("/apis/apps/v1/deployments").Route == registry.RouteLocal)
	fmt.Println(registry.Build(in, table) == table)
	// Output:
	// true v1beta1.metrics.k8s.io metrics-server.kube-system.svc
	// ServiceNotFound service/metrics-server in "kube-system" is not present
	// true
	// true
}
