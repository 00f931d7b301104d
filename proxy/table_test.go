package proxy

import (
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

type current struct{ atomic.Pointer[registry.Table] }

// buildTable makes a table with a remote group-version, served by w.remote, and a local one.
func buildTable(t testing.TB, w *world, c worldConfig) *registry.Table {
	t.Helper()
	address := netip.MustParseAddrPort(w.remote.Listener.Addr().String())
	port := int32(address.Port())
	remote := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.remote.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "remote.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: w.serving.PEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "ext", Port: new(int32(443))},
		},
	}
	if c.change != nil {
		c.change(remote)
	}
	key := types.NamespacedName{Namespace: "default", Name: "ext"}
	options := &registry.Options{}
	options.Reach.AllowLoopback = true
	in := registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{
			remote.Name: remote,
			"v1.apps": {ObjectMeta: metav1.ObjectMeta{Name: "v1.apps"}, Spec: apiregistrationv1.APIServiceSpec{
				Group: "apps", Version: "v1", GroupPriorityMinimum: 17800, VersionPriority: 15,
			}},
		},
		Services: map[types.NamespacedName]*corev1.Service{key: {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{key: {{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext-1"}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.Addr().String()}}},
		}}},
		Options: options, Complete: !c.incomplete, Now: time.Now(),
	}
	if c.also != nil {
		c.also(&in)
	}
	first := registry.Build(in, w.current.Load())
	for _, e := range first.Entries() {
		for _, ep := range e.Endpoints {
			h := registry.Report{Name: e.Name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: ep.Address, Health: registry.Healthy}}
			if c.unhealthy {
				h.Health, h.Reason, h.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "dial tcp 10.1.2.3:443: refused"
			}
			in.Reports = append(in.Reports, h)
		}
	}
	return registry.Build(in, first)
}

// A request keeps the table by which it was decided. Here another table, without the APIService,
// replaces it during authorization.
func TestOneTableForARequest(t *testing.T) {
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	for _, tc := range []struct{ proto, path, as, want string }{
		{"http/1.1", remoteGV + "/widgets", "", "far"},
		{"http/1.1", remoteGV + "/widgets", "jane", "far"},
		{"h2", remoteGV + "/widgets", "", "far"},
		{"h2", remoteGV + "/widgets", "jane", "far"},
		{"http/1.1", "/apis/remote.example.com", "", "document"},
		{"http/1.1", "/apis/remote.example.com", "jane", "document"},
	} {
		var w *world
		var armed atomic.Bool
		w = newWorld(t, worldConfig{remote: says("far"), local: says("local"), Config: Config{Documents: says("document")}, reviewed: func() error {
			if armed.Load() {
				w.current.Store(registry.Build(registry.Input{Complete: true}, nil))
			}
			return nil
		}})
		w.get(t, tc.proto, remoteGV) // as bob; Fairlead learns the backend's protocol
		armed.Store(true)
		r := w.as(t, "boss", "GET", tc.path, nil)
		if tc.as != "" {
			r.Header.Set("Impersonate-User", tc.as)
		}
		check.Same(t, tc.want, w.do(t, w.httpClient(t, tc.proto, nil), r).body, "%+v: body", tc)
	}
}
