package proxy

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
)

// oneService is a table with one remote APIService and one endpoint.
func oneService(t *testing.T, name, address string, before *registry.Table) *registry.Table {
	t.Helper()
	at := netip.MustParseAddrPort(address)
	port := int32(at.Port())
	key := types.NamespacedName{Namespace: "default", Name: name}
	return registry.Build(registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{"v1." + name + ".example.com": {
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + name + ".example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: name + ".example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: name, Port: new(int32(443))},
			},
		}},
		Services: map[types.NamespacedName]*corev1.Service{key: {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{key: {{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1"}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{at.Addr().String()}}},
		}}},
		Options: &registry.Options{AllowLoopback: true}, Complete: true, Now: time.Now(),
	}, before)
}

// Endpoints and APIServices that come and go, as in any rolling update, leave nothing behind on the frame lane.
func TestFrameLaneForgetsWhatIsGone(t *testing.T) {
	var table atomic.Pointer[registry.Table]
	table.Store(oneService(t, "first", "127.0.0.1:1", nil))
	pools, err := backend.New(backend.Config{
		Table: table.Load, AllowLoopback: true, TLS: func(*registry.Backend) (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS12}, nil },
	})
	check(t, err)
	l := &frameLane{p: &Proxy{cfg: Config{Backends: pools}}}
	use := func() *backend.Upstream {
		e := table.Load().Entries()[0]
		u := pools.Upstream(e)
		if u == nil {
			t.Fatal("an APIService of the table has no upstream")
		}
		up := l.known(u)
		if ep := up.frames.Pick(nil); ep == nil || ep.Name != e.Endpoints[0].Address {
			t.Fatalf("picked %v, want %s", ep, e.Endpoints[0].Address)
		}
		return u
	}
	const rounds = 2000
	for i := range rounds {
		name := "first"
		if i%3 == 0 {
			name = fmt.Sprint("svc", i)
		}
		table.Store(oneService(t, name, fmt.Sprintf("127.0.0.1:%d", 2+i), table.Load()))
		use()
	}
	count := func() (n int) {
		l.upstreams.Range(func(any, any) bool { n++; return true })
		l.endpoints.Range(func(any, any) bool { n++; return true })
		return n
	}
	if n := count(); n > 2*leastSwept {
		t.Errorf("%d upstreams and endpoints are kept of %d that came and went", n, 2*rounds)
	}
	u := use()
	known := l.known(u)
	if again := use(); again != u || l.known(u) != known {
		t.Error("what there is was not kept")
	}
}
