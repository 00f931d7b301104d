package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// slice makes an EndpointSlice of default/kubernetes: addresses that end with "!" are not ready.
func slice(name string, kind discoveryv1.AddressType, ports []discoveryv1.EndpointPort, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: kind, Ports: ports,
	}
	for _, a := range addresses {
		ip, not := strings.CutSuffix(a, "!")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(!not)}})
	}
	return s
}

func slicePorts(list ...any) (out []discoveryv1.EndpointPort) {
	for i := 0; i < len(list); i += 2 {
		out = append(out, discoveryv1.EndpointPort{Name: new(list[i].(string)), Port: new(int32(list[i+1].(int))), Protocol: new(corev1.ProtocolTCP)})
	}
	return out
}

// The local apiservers are what the EndpointSlices name and can be one. Nothing takes the last away.
func TestFollowServers(t *testing.T) {
	https := slicePorts("https", 6443)
	fairlead := slice("fairlead", discoveryv1.AddressTypeIPv4, https, "10.0.0.9")
	fairlead.Labels[discoveryv1.LabelManagedBy] = "fairlead.dev"
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("10.9.%d.%d", i/100, 100+i%100))
	}
	for _, tc := range []struct {
		name string
		has  []runtime.Object
		want string
	}{
		{"those named first", []runtime.Object{slice("kubernetes", discoveryv1.AddressTypeIPv4, https, "10.0.0.1", "10.0.0.3", "10.0.0.2", "10.0.0.2")}, "10.0.0.3:6443 10.0.0.2:6443 10.0.0.1:6443"},
		{"IPv6, and another port", []runtime.Object{slice("kubernetes", discoveryv1.AddressTypeIPv6, slicePorts("https", 7443), "fd00::1")}, "[fd00::1]:7443"},
		{"several ports", []runtime.Object{slice("kubernetes", discoveryv1.AddressTypeIPv4, slicePorts("http", 80, "https", 443), "10.0.0.1")}, "10.0.0.1:443"},
		{"one that is not ready", []runtime.Object{slice("kubernetes", discoveryv1.AddressTypeIPv4, https, "10.0.0.1!", "10.0.0.2")}, "10.0.0.2:6443"},
		{"hundreds", []runtime.Object{slice("kubernetes", discoveryv1.AddressTypeIPv4, https, append(many, "10.0.0.2")...)}, "10.0.0.2:6443 " + strings.Join(many[:maxFollowed-1], ":6443 ") + ":6443"},
		{"none", nil, "10.0.0.3:6443 10.0.0.2:6443"},
		{"a Fairlead, loopback, link-local, this process, a name", []runtime.Object{
			fairlead, slice("kubernetes", discoveryv1.AddressTypeIPv4, https, "127.0.0.1", "169.254.169.254", "10.0.0.7"), slice("names", discoveryv1.AddressTypeFQDN, https, "kubernetes.example.com"),
		}, "10.0.0.3:6443 10.0.0.2:6443"},
	} {
		k := &kube{process: &process{o: &options{}, news: make(chan struct{}, 1)}, servers: []string{"10.0.0.3:6443", "10.0.0.2:6443"}}
		k.pools = backend.NewLocal(backend.LocalConfig{
			Servers: k.servers, TLS: k.tls, IdentityChanged: func() <-chan struct{} { return nil }, Dial: k.own.dial, Signal: func(string, error) {},
		})
		core := fake.NewClientset(tc.has...)
		follow := k.follows(sliced(core.DiscoveryV1().EndpointSlices("default"), []netip.AddrPort{netip.MustParseAddrPort("10.0.0.7:6443")}))
		named := func() string {
			var out []string
			for _, e := range k.list() {
				if !e.Terminating {
					out = append(out, e.Address)
				}
			}
			return strings.Join(out, " ")
		}
		follow(t.Context())
		check.Same(t, tc.want, named(), "%s", tc.name)
		down := true
		core.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) { return down, nil, context.Canceled })
		check.Same(t, time.Second, follow(t.Context()), "%s: when it is read again if it cannot be", tc.name)
		check.Same(t, tc.want, named(), "%s, when it cannot be read", tc.name)
		check.Fault(t, "canceled", k.found.Err(time.Time{}), "%s, when it cannot be read", tc.name)
		down = false
		follow(t.Context())
		none := tc.want == strings.Join(k.servers, " ")
		check.Same(t, none, k.found.Err(time.Time{}) != nil, "%s: none is found", tc.name)
	}
}

// A look-up that hangs is a fault like others.
func TestFollowHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kube{process: &process{o: &options{}}}
		k.follows(func(ctx context.Context) ([]string, error) { <-ctx.Done(); return nil, ctx.Err() })(t.Context())
		check.Fault(t, "deadline exceeded", k.found.Err(time.Time{}), "a look-up that hangs")
	})
}

// A look-up that fails does not make the only server that is named all that there are; one that finds none does. What
// it lacks a credential or a right for, other checks tell.
func TestFollowNone(t *testing.T) {
	for fails, want := range map[error]string{
		nil: "none that can be used", context.Canceled: "canceled",
		apierrors.NewUnauthorized("expired"):                                            "",
		apierrors.NewForbidden(coordinationv1.Resource("leases"), "", context.Canceled): "",
	} {
		k := &kube{process: &process{o: &options{}}, servers: []string{"10.0.0.3:6443"}}
		k.pools = backend.NewLocal(backend.LocalConfig{
			Servers: k.servers, TLS: k.tls, IdentityChanged: func() <-chan struct{} { return nil }, Dial: k.own.dial,
			Signal: func(string, error) {}, Finds: true,
		})
		again := k.follows(func(context.Context) ([]string, error) { return nil, fails })(t.Context())
		check.Same(t, fails != nil, again < followEvery, "%v: it is read again soon", fails)
		check.Same(t, fails == nil, k.pools.Told(), "%v: all are known", fails)
		check.Fault(t, want, k.found.Err(time.Time{}), "%v", fails)
	}
}

// Fairlead's own clients use a server that is known to work before one that was only named: that
// one may be a stranger, which accepts connections and fails each handshake.
func TestPrefer(t *testing.T) {
	own := &apiservers{}
	own.order.Store(&[]string{"balancer", "other"})
	fresh, ill := registry.Endpoint{Address: "fresh"}, registry.Endpoint{Address: "ill", Health: registry.Unhealthy}
	balancer := registry.Endpoint{Address: "balancer", Health: registry.Healthy, Terminating: true}
	known := func(fresh registry.Endpoint, want string) {
		t.Helper()
		for range 2 {
			own.prefer([]registry.Endpoint{ill, {Address: "other"}, fresh, balancer})
			check.Same(t, want, strings.Join(*own.order.Load(), " "), "order")
		}
	}
	known(fresh, "balancer other fresh ill")
	fresh.Health = registry.Healthy
	known(fresh, "fresh balancer other ill")
	fresh.Health = registry.Unhealthy
	known(fresh, "balancer other ill fresh")
}

// A Lease that is renewed names a kube-apiserver by its host, and so do all while none can be: etcd is full. Once one
// can be again, those that are healthy stay until theirs are, too.
func TestLeased(t *testing.T) {
	for _, last := range []time.Time{time.Now(), time.Now().Add(-time.Hour)} {
		var has []runtime.Object
		for host, renewed := range map[string]time.Duration{"cp-1": 0, "cp-2": leaseTime, "": 0, "cp-3": 45 * time.Second} {
			has = append(has, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "apiserver-" + host, Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver", corev1.LabelHostname: host}},
				Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(last.Add(-renewed)))},
			})
		}
		has = append(has, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler"}})
		k := &kube{servers: []string{"10.0.0.3:7443", "cp-2:7443"}}
		k.pools = backend.NewLocal(backend.LocalConfig{
			Servers: k.servers, TLS: k.tls, IdentityChanged: func() <-chan struct{} { return nil }, Dial: k.own.dial,
			Signal: func(string, error) {},
		})
		for _, want := range [][]string{{"cp-1:7443", "cp-3:7443"}, {"cp-1:7443", "cp-2:7443", "cp-3:7443"}} {
			got := must.Get(k.leased(fake.NewClientset(has...).CoordinationV1().Leases("kube-system"))(t.Context()))(t)
			check.Same(t, want, slices.Sorted(slices.Values(got)), "the kube-apiservers")
			k.pools.Report(registry.Report{Endpoint: registry.Endpoint{Address: "cp-2:7443", Health: registry.Healthy}})
		}
	}
}
