package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// manyRemotes returns n APIServices in n/2 groups, each with its own Service and one slice of three endpoints.
func manyRemotes(n int) Input {
	in := Input{
		APIServices: make(map[string]*apiregistrationv1.APIService, n),
		Services:    make(map[types.NamespacedName]*corev1.Service, n),
		Slices:      make(map[types.NamespacedName][]*discoveryv1.EndpointSlice, n),
		Options:     &Options{},
		Complete:    true,
		Now:         time.Unix(1_700_000_000, 0),
	}
	for i := range n {
		group, version := fmt.Sprintf("group%d.example.com", i/2), fmt.Sprintf("v%d", 1+i%2)
		service := types.NamespacedName{Namespace: "extensions", Name: fmt.Sprintf("server-%d", i)}
		a := remoteService(group, version, service.Name)
		a.Spec.GroupPriorityMinimum = int32(100 + i%7)
		in.APIServices[a.Name] = a
		in.Services[service] = clusterIP(service)
		in.Slices[service] = []*discoveryv1.EndpointSlice{slice(service, fmt.Sprintf("10.%d.%d.1", i/250, i%250), "10.255.0.2", "10.255.0.3")}
	}
	return in
}

// unanswered is the error of a watch that was to last for so many seconds.
func unanswered(seconds int, cause string) error {
	return &url.Error{Op: "Get", URL: fmt.Sprint("https://10.0.0.2/api/v1/services?timeoutSeconds=", seconds), Err: errors.New(cause)}
}

// remoteService is an APIService of an extension server, or a Local one if service is empty.
func remoteService(group, version, service string) *apiregistrationv1.APIService {
	a := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 100, VersionPriority: 10,
			Service:               &apiregistrationv1.ServiceReference{Namespace: "extensions", Name: service},
			InsecureSkipTLSVerify: true,
		},
	}
	if service == "" {
		a.Spec.Service, a.Spec.InsecureSkipTLSVerify = nil, false
	}
	return a
}

func clusterIP(name types.NamespacedName) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}
}

func slice(service types.NamespacedName, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(8443))}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// meter has the metrics of a registry.
type meter struct{ *prometheus.Registry }

func newMeter() meter { return meter{prometheus.NewPedanticRegistry()} }

// series are those of APIServices and of faults.
func (m meter) series() string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(m, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	all := regexp.MustCompile(`(?m)^(aggregator|fairlead_(apiservice_info|registry_(entries|\w*problems))).*\n`)
	return strings.Join(all.FindAllString(w.Body.String(), -1), "")
}

// BenchmarkStep measures the writer's work for one change among ten thousand APIServices.
func BenchmarkStep(b *testing.B) {
	const n = 10_000
	service, extra := types.NamespacedName{Namespace: "extensions", Name: "server-5"}, remoteService("extra.example.com", "v1", "server-5")
	for name, change := range map[string]func(r *Registry, i int){
		"endpoint": func(r *Registry, i int) { put(r.changes, slice(service, fmt.Sprintf("10.200.0.%d", i%200))) },
		"report": func(r *Registry, i int) {
			e := r.Table().Entries()[n/2]
			r.Report(Report{Name: e.Name, Backend: e.Backend, Endpoint: Endpoint{Address: e.Endpoints[0].Address, Health: Healthy + Health(i%2)}})
		},
		"apiservice": func(r *Registry, i int) {
			if put(r.changes, extra); i%2 == 1 {
				r.changes.set(keyOf(extra), nil)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			r, o, in := newRegistry(Config{}, nil), newObjects(), manyRemotes(n)
			for k := range kinds {
				r.changes.replace(k, nil)
			}
			for service, s := range in.Services {
				put(r.changes, s, in.Slices[service][0])
			}
			for _, a := range in.APIServices {
				put(r.changes, a)
			}
			r.step(o)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				before := r.Table()
				change(r, i)
				if r.step(o); r.Table() == before {
					b.Fatal("nothing has changed")
				}
			}
		})
	}
}

func BenchmarkMatch(b *testing.B) {
	t := Build(manyRemotes(1_000), nil)
	for name, path := range map[string]string{
		"remote":   "/apis/group7.example.com/v1/namespaces/default/flunders/one",
		"escaped":  "/apis/group7.example.com/v1/namespaces/default/flunders/one%2Ftwo",
		"local":    "/api/v1/namespaces/default/pods",
		"unknown":  "/apis/apps/v1/namespaces/default/deployments",
		"document": "/apis/group7.example.com",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t.Match(path)
			}
		})
	}
}
