package registry_test

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A table is made of objects. It answers who serves a path, and the next one shares what has not changed.
func ExampleBuild() {
	local := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.apps"}}
	local.Spec = apiregistrationv1.APIServiceSpec{Group: "apps", Version: "v1", GroupPriorityMinimum: 17800, VersionPriority: 15}
	remote := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.tides.example.com"}}
	remote.Spec = apiregistrationv1.APIServiceSpec{
		Group: "tides.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 15,
		Service: &apiregistrationv1.ServiceReference{Namespace: "sea", Name: "tides"}, InsecureSkipTLSVerify: true,
	}
	in := registry.Input{APIServices: map[string]*apiregistrationv1.APIService{local.Name: local, remote.Name: remote}, Complete: true}

	table := registry.Build(in, nil)
	for _, e := range table.Entries() {
		fmt.Println(e.GroupVersion, e.Verdict.Status, e.Verdict.Reason)
	}
	for _, path := range []string{"/apis/apps/v1/deployments", "/apis/tides.example.com/v1/gauges", "/apis/%2e%2e/v1", "/version"} {
		switch m := table.Match(path); m.Route {
		case registry.RouteLocal:
			fmt.Println(path, "is local")
		case registry.RouteRemote:
			fmt.Println(path, "is served by", m.Entry.Name)
		case registry.RouteInvalid:
			fmt.Println(path, "can be read in two ways")
		default:
			fmt.Println(path, "has another route")
		}
	}
	fmt.Println("nothing changed:", registry.Build(in, table) == table)
	// Output:
	// apps/v1 True Local
	// tides.example.com/v1 False ServiceNotFound
	// /apis/apps/v1/deployments is local
	// /apis/tides.example.com/v1/gauges is served by v1.tides.example.com
	// /apis/%2e%2e/v1 can be read in two ways
	// /version is local
	// nothing changed: true
}
