package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/apiserver"
)

// crowd simulates a kube-apiserver with very many APIServices, as far as this process uses it, and
// the server behind all their Services.
type crowd struct {
	*apiserver.Server
	apiServices, services int
	annotations           map[string]string // of each APIService

	port    int32
	written atomic.Int64 // by this process: conditions, Leases, Events
}

func (c *crowd) named(i int) metav1.ObjectMeta {
	name := fmt.Sprintf("s%d", i%c.services)
	return metav1.ObjectMeta{Namespace: "many", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
}

func (c *crowd) apiService(i int) *apiregistrationv1.APIService {
	group := fmt.Sprintf("group%d.example.com", i)
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + group, Annotations: c.annotations}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: "many", Name: c.named(i).Name},
	}}
}

func (c *crowd) service(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: c.named(i), Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
}

// slice returns a Service's EndpointSlice, optionally with a second endpoint.
func (c *crowd) slice(i int, second bool) *discoveryv1.EndpointSlice {
	name := "https"
	return &discoveryv1.EndpointSlice{
		ObjectMeta: c.named(i), AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &c.port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}, {Addresses: []string{"127.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &second}}},
	}
}

func writeJSON(w http.ResponseWriter, contentType, body string) {
	w.Header().Set("Content-Type", contentType)
	_, _ = io.WriteString(w, body)
}

func (c *crowd) local() http.Handler {
	mux := http.NewServeMux()
	discovery := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"1"`)
		if strings.Contains(r.Header.Get("Accept"), "APIGroupDiscoveryList") {
			writeJSON(w, aggregated, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`)
			return
		}
		writeJSON(w, "application/json", `{"kind":"APIVersions","versions":["v1"]}`)
	}
	mux.HandleFunc("GET /api", discovery)
	mux.HandleFunc("GET /apis", discovery)
	mux.HandleFunc("GET /openapi/v3", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, "application/json", `{"paths":{}}`) })
	mux.HandleFunc("GET /openapi/v2", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, "application/json", `{"swagger":"2.0","info":{"title":"Kubernetes"},"paths":{}}`)
	})
	mux.Handle("GET /", c.Server)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { // it accepts every write
		c.written.Add(1)
		kind := r.Header.Get("Content-Type")
		if strings.HasSuffix(kind, "patch+json") || strings.HasSuffix(kind, "patch+yaml") {
			kind = "application/json"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.Copy(w, r.Body)
	})
	return mux
}

// extension is the server behind every Service; the TLS server name says which.
func (c *crowd) extension(w http.ResponseWriter, r *http.Request) {
	first, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.TLS.ServerName, "s"), ".many.svc"))
	switch {
	case err != nil || r.URL.Path != "/apis":
		http.NotFound(w, r)
		return
	case r.Header.Get("If-None-Match") != "":
		w.WriteHeader(http.StatusNotModified)
		return
	}
	verbs := []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	list := apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}
	for i := first; i <= c.apiServices; i += c.services { // the last APIService comes and goes
		v := apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
		for _, name := range []string{"things", "others"} {
			v.Resources = append(v.Resources, apidiscoveryv2.APIResourceDiscovery{
				Resource: name, SingularResource: "thing", Scope: apidiscoveryv2.ScopeNamespace, Verbs: verbs,
				Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", Verbs: []string{"get", "patch", "update"}}},
			})
		}
		list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: c.apiService(i).Spec.Group}, Versions: []apidiscoveryv2.APIVersionDiscovery{v}})
	}
	w.Header().Set("ETag", `"1"`)
	w.Header().Set("Content-Type", aggregated)
	_ = json.NewEncoder(w).Encode(list)
}

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
