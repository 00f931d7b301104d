package documents

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Documents are made again only if something in them has changed. With ten thousand APIServices,
// most new tables differ in a verdict or an endpoint.
func TestPublishedWhenItMatters(t *testing.T) {
	for _, verdicts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			service := types.NamespacedName{Namespace: "x", Name: "a"}
			object := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.a.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
				Group: "a.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 10, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: "x", Name: "a"},
			}}
			endpoint := func(address string) []*discoveryv1.EndpointSlice {
				return []*discoveryv1.EndpointSlice{{
					AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(443)), Name: new("")}},
					Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
				}}
			}
			in := registry.Input{
				APIServices: map[string]*apiregistrationv1.APIService{object.Name: object},
				Services:    map[types.NamespacedName]*corev1.Service{service: {Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 443}}}}},
				Slices:      map[types.NamespacedName][]*discoveryv1.EndpointSlice{service: endpoint("10.1.0.1")},
				Options:     &registry.Options{}, Complete: true,
			}
			var table atomic.Pointer[registry.Table]
			table.Store(registry.Build(in, nil))
			published := 0
			s := must.Get(New(Config{
				Table: table.Load,
				Fetch: func(context.Context, *registry.Entry, *http.Request) (*http.Response, error) {
					return nil, context.Canceled
				},
			}, Kind[book]{
				Name:     "test",
				Ask:      func(context.Context, *book, []*registry.Entry) (*book, bool, error) { return nil, false, nil },
				Publish:  func(*registry.Table) time.Time { published++; return time.Time{} },
				Status:   func(func(Freshness)) {},
				Sizes:    func(func(string, int)) {},
				Verdicts: verdicts,
			}))(t)
			must.Run(t, s.Run)
			expect := func(what string, want int) {
				t.Helper()
				table.Store(registry.Build(in, table.Load()))
				// These tables do not supersede each other. The token wakes the set instead,
				// without a claim that something must be published.
				select {
				case s.changed <- time.Time{}:
				default:
				}
				in.Reports = nil
				time.Sleep(time.Second)
				synctest.Wait()
				if published != want {
					t.Errorf("verdicts matter %v, %s: published %d times, want %d", verdicts, what, published, want)
				}
				published = 0
			}
			expect("the start", 1)
			in.Slices[service] = endpoint("10.1.0.2")
			expect("another endpoint", 0)
			e := table.Load().Entries()[0]
			in.Reports = []registry.Report{{Name: e.Name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}}
			matter := 0
			if verdicts {
				matter = 1
			}
			expect("a verdict", matter)
			object = object.DeepCopy()
			object.Spec.VersionPriority = 11
			in.APIServices[object.Name] = object
			expect("another priority", 1)
			s.Touch()
			expect("something a backend has said", 1)
			delete(in.APIServices, object.Name)
			expect("nothing left", 1)
		})
	}
}
