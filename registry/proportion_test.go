package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Whatever is in objects, a table of it costs in proportion to its size: when it is built first,
// and when everything changes.
func TestInProportion(t *testing.T) {
	one := types.NamespacedName{Namespace: "extensions", Name: "server-0"}
	object := func(change func(n int, in *Input, a *apiregistrationv1.APIService)) func(n int) Input {
		return func(n int) Input {
			in := manyRemotes(1)
			for _, a := range in.APIServices {
				change(n, &in, a)
			}
			return in
		}
	}
	endpoints := func(n int) []*discoveryv1.EndpointSlice {
		var list []*discoveryv1.EndpointSlice
		for i := range n {
			if i%100 == 0 {
				list = append(list, slice(one))
			}
			last := list[len(list)-1]
			last.Endpoints = append(last.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, i%250)}})
		}
		return list
	}
	annotation := func(name, value string) func(n int) Input {
		return object(func(n int, _ *Input, a *apiregistrationv1.APIService) {
			a.Annotations = map[string]string{prefix + name: strings.Repeat(value, n)}
		})
	}
	rows := []proportion.Row{{Name: "slices of a Service, listed again", N: 1000, Of: func(n int) (int, func() any) {
		o := newObjects()
		list := func() any {
			all := &batch{objects: make(map[key]runtime.Object)}
			for i := range n {
				s := slice(one)
				s.Name = fmt.Sprint(i)
				all.objects[key{kindSlice, types.NamespacedName{Namespace: one.Namespace, Name: s.Name}}] = s
			}
			o.apply(all)
			return nil
		}
		list()
		return 500 * n, list
	}}}
	for _, of := range []struct {
		name string
		n    int
		each int // bytes
		make func(n int) Input
	}{
		{"APIServices", 200, 2000, manyRemotes},
		{"versions of a group", 200, 500, func(n int) Input {
			in := manyRemotes(n)
			for name, a := range in.APIServices {
				delete(in.APIServices, name)
				a.Spec.Version, a.Spec.Group = fmt.Sprintf("v%s", strings.Split(name, ".")[1]), "one.example.com"
				a.Spec.Version += name[:2]
				a.Name = a.Spec.Version + ".one.example.com"
				in.APIServices[a.Name] = a
			}
			return in
		}},
		{"APIServices of one Service", 200, 500, func(n int) Input { return sharing(n, endpoints(3)) }},
		{"endpoints of a Service", 240, 200, object(func(n int, in *Input, _ *apiregistrationv1.APIService) { in.Slices[one] = endpoints(n) })},
		{"slices of a Service", 200, 200, object(func(n int, in *Input, _ *apiregistrationv1.APIService) {
			in.Slices[one] = nil
			for i := range n {
				in.Slices[one] = append(in.Slices[one], slice(one, fmt.Sprintf("10.1.%d.%d", i/250, i%250)))
			}
		})},
		{"addresses of an endpoint", 1000, 16, object(func(n int, in *Input, _ *apiregistrationv1.APIService) {
			for i := range n {
				e := &in.Slices[one][0].Endpoints[0]
				e.Addresses = append(e.Addresses, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
			}
		})},
		{"ports of a slice, and its endpoints", 200, 200, object(func(n int, in *Input, _ *apiregistrationv1.APIService) {
			in.Slices[one] = endpoints(n)
			for _, s := range in.Slices[one] {
				for i := range n / len(in.Slices[one]) {
					s.Ports = append([]discoveryv1.EndpointPort{{Name: new(fmt.Sprint(i)), Port: new(int32(i + 1))}}, s.Ports...)
				}
			}
		})},
		{"ports of a Service", 200, 100, object(func(n int, in *Input, _ *apiregistrationv1.APIService) {
			for i := range n {
				s := in.Services[one]
				s.Spec.Ports = append([]corev1.ServicePort{{Name: fmt.Sprint(i), Port: int32(1000 + i)}}, s.Spec.Ports...)
			}
		})},
		{"reports of endpoints", 240, 200, object(func(n int, in *Input, a *apiregistrationv1.APIService) {
			in.Slices[one] = endpoints(n)
			e := Build(*in, nil).Entries()[0]
			for _, endpoint := range e.Endpoints {
				in.Reports = append(in.Reports, Report{Name: a.Name, Backend: e.Backend, Endpoint: Endpoint{Address: endpoint.Address, Health: Healthy}})
			}
		})},
		{"annotations", 200, 50, object(func(n int, _ *Input, a *apiregistrationv1.APIService) {
			a.Annotations = map[string]string{}
			for i := range n {
				a.Annotations[fmt.Sprintf("%sunknown-%d", prefix, i)] = strings.Repeat("v", 20)
			}
		})},
		{"long-running subresources", 2000, 2, annotation("long-running-subresources", "a,")},
		{"URLs", 500, 20, annotation("url", "https://192.0.2.1:1,")},
		{"a long maintenance message", 4000, 1, annotation("maintenance", "m")},
		{"a long timeout", 4000, 2, annotation("request-timeout", "1s")},
		{"certificates of a caBundle", 20, 600, object(func(n int, _ *Input, a *apiregistrationv1.APIService) { // what else may be in one: certs/trust
			a.Spec.InsecureSkipTLSVerify = false
			for i := range n {
				a.Spec.CABundle = append(a.Spec.CABundle, pki.NewCA(fmt.Sprint(i)).PEM()...)
			}
		})},
		{"one caBundle in many APIServices", 100, 1200, func(n int) Input {
			in, ca := manyRemotes(n), pki.NewCA("one").PEM()
			for _, a := range in.APIServices {
				a.Spec.InsecureSkipTLSVerify, a.Spec.CABundle = false, ca
			}
			return in
		}},
	} {
		rows = append(rows, built(of.name, of.n, of.each, of.make)...)
	}
	proportion.Check(t, rows...)
}

// built returns the rows of a table's first build, and of the next when everything was touched.
func built(name string, n, each int, of func(n int) Input) []proportion.Row {
	return []proportion.Row{{Name: name, N: n, Of: func(n int) (int, func() any) {
		in := of(n)
		return each * n, func() any { return Build(in, nil) }
	}}, {Name: name + ", again", N: n, Of: func(n int) (int, func() any) {
		before, in := Build(of(n), nil), of(n)
		for _, a := range in.APIServices {
			a.Spec.VersionPriority++
		}
		in.Now = in.Now.Add(time.Second)
		return each * n, func() any { return Build(in, before) }
	}}}
}

// sharing returns n APIServices of one Service.
func sharing(n int, list []*discoveryv1.EndpointSlice) Input {
	in := manyRemotes(n)
	for _, a := range in.APIServices {
		a.Spec.Service.Name = "server-0"
	}
	in.Slices[types.NamespacedName{Namespace: "extensions", Name: "server-0"}] = list
	return in
}
