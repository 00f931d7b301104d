package main

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/reach"
)

// followEvery is how often the local apiservers are looked up. A kube-apiserver that ends leaves
// the EndpointSlice first, and serves on for its --shutdown-delay-duration.
const followEvery = 5 * time.Second

// maxFollowed is how many are followed. There are a handful; 500 strangers cost 50 MiB and a
// quarter of a core.
const maxFollowed = 32

// follows returns a function that makes the servers those of the EndpointSlices of
// default/kubernetes. Without one that can be used there all stay as they are: a read that fails,
// or that sees an empty list, takes no server away.
func (k *kube) follows(from discoveryv1client.EndpointSliceInterface, self []netip.AddrPort) func(context.Context) {
	rules, said := &reach.Rules{Self: self}, ""
	return func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 2*followEvery)
		defer cancel()
		list, err := from.List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
		var fault string
		var addresses []string
		if err != nil {
			fault = err.Error()
		} else if addresses = k.apiserversOf(list.Items, rules); len(addresses) == 0 {
			fault = "they name none that can be used"
		} else {
			k.pools.Follow(addresses)
			latest.Wake(k.news)
		}
		if fault != said && ctx.Err() == nil {
			k.log.Warn("the EndpointSlices of default/kubernetes: all local apiservers stay", "err", fault)
		}
		said = fault
	}
}

// apiserversOf returns the addresses of the kube-apiservers that the slices name, in an order:
// first those that the operator named. None is a Fairlead, which may publish itself there, or
// loopback.
func (k *kube) apiserversOf(list []discoveryv1.EndpointSlice, rules *reach.Rules) (addresses []string) {
	for i := range list {
		s := &list[i]
		if s.AddressType == discoveryv1.AddressTypeFQDN || s.Labels[discoveryv1.LabelManagedBy] == entrypoint.Manager {
			continue
		}
		for _, port := range s.Ports {
			if port.Port == nil || port.Name != nil && *port.Name != "https" && len(s.Ports) > 1 {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) && rules.Refusal(e.Addresses[0], *port.Port) == "" {
					addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	rank := func(a string) int { return slices.Index(k.servers, a) + 1 }
	slices.SortFunc(addresses, func(a, b string) int {
		return cmp.Or(cmp.Compare(min(rank(b), 1), min(rank(a), 1)), cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	addresses = slices.Compact(addresses)
	return addresses[:min(len(addresses), maxFollowed)]
}
