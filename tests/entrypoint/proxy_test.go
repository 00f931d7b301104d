//go:build e2e

package entrypoint

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/relay"
)

// clusterIP is the address of the Service kubernetes.
const clusterIP = "10.96.0.1"

// endpoints returns the addresses in the EndpointSlices of default/kubernetes, in order.
func endpoints(ctx context.Context, core kubernetes.Interface) ([]netip.AddrPort, error) {
	list, err := core.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, s := range list.Items {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				all = append(all, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*p.Port)))
			}
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all, nil
}

// serviceProxy acts as kube-proxy for one Service: each connection to the cluster address goes to
// one of the current endpoints. Like kube-proxy, it reads them directly from an apiserver.
func serviceProxy(t *testing.T, core kubernetes.Interface) {
	t.Helper()
	l := must.Get(net.Listen("tcp", clusterIP+":443"))(t)
	relay.Accept(t, l, func(ctx context.Context, client net.Conn) { forward(ctx, core, client) })
}

func forward(ctx context.Context, core kubernetes.Interface, client net.Conn) {
	all, err := endpoints(ctx, core)
	if err != nil || len(all) == 0 {
		return
	}
	server, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", all[rand.IntN(len(all))].String())
	if err != nil {
		return
	}
	relay.Join(ctx, client, server, client)
}
