package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/reach"
)

const (
	fromSlice, fromLease = "endpointslice", "lease" // the values of --local-apiservers-from
	// followEvery is how often the local apiservers are looked up. A kube-apiserver that ends leaves
	// the EndpointSlice first, and serves on for its --shutdown-delay-duration.
	followEvery = 5 * time.Second
	maxFollowed = 32          // there are a handful; 500 strangers cost 50 MiB and a quarter of a core
	leaseTime   = time.Minute // for which a kube-apiserver counts after a renewal, every 10 s: clocks differ
)

// follows returns a function that makes the servers those that find returns. Without one that can
// be used all stay as they are: a read that fails, or sees an empty list, takes no server away.
func (k *kube) follows(find func(context.Context) ([]string, error)) func(context.Context) {
	said := ""
	return func(all context.Context) {
		ctx, cancel := context.WithTimeout(all, 2*followEvery)
		defer cancel()
		addresses, err := find(ctx)
		fault := ""
		switch {
		case err != nil:
			fault = err.Error()
		case len(addresses) == 0:
			fault = "none that can be used is named"
		default:
			k.pools.Follow(k.inOrder(addresses))
			latest.Wake(k.news)
		}
		if fault != "" && fault != said && all.Err() == nil {
			k.log.Warn("finding local apiservers: all stay", "from", k.o.serversFrom, "err", fault)
		}
		said = fault
	}
}

// inOrder returns addresses in an order: first those that the operator named.
func (k *kube) inOrder(addresses []string) []string {
	found := sets.New(addresses...)
	named := slices.DeleteFunc(slices.Clone(k.servers), func(a string) bool { return !found.Has(a) })
	all := append(named, sets.List(found.Delete(named...))...)
	return all[:min(len(all), maxFollowed)]
}

// leased finds the kube-apiservers that renew their Leases (kubernetes' APIServerIdentity). Those
// have names of hosts and no ports: that of the first server that the operator named.
func (k *kube) leased(from coordinationv1client.LeaseInterface) func(context.Context) ([]string, error) {
	return func(ctx context.Context) (addresses []string, err error) {
		_, port, _ := net.SplitHostPort(k.servers[0]) // addressOf has made it
		all, err := from.List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil {
			return nil, err
		}
		for i := range all.Items {
			l := &all.Items[i]
			host := l.Labels[corev1.LabelHostname]
			if at := l.Spec.RenewTime; at != nil && time.Since(at.Time) < leaseTime && host != "" {
				addresses = append(addresses, net.JoinHostPort(host, port))
			}
		}
		return addresses, nil
	}
}

// sliced finds the kube-apiservers in the EndpointSlices of default/kubernetes: no Fairlead, and nothing on loopback.
func sliced(in discoveryv1client.EndpointSliceInterface, own []netip.AddrPort) func(context.Context) ([]string, error) {
	rules := &reach.Rules{Self: own}
	return func(ctx context.Context) (addresses []string, err error) {
		list, err := in.List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
		if err != nil {
			return nil, err
		}
		for _, s := range list.Items {
			if s.AddressType == discoveryv1.AddressTypeFQDN ||
				s.Labels[discoveryv1.LabelManagedBy] == entrypoint.Manager {
				continue
			}
			for _, port := range s.Ports {
				if port.Port == nil || len(s.Ports) > 1 && ptr.Deref(port.Name, "https") != "https" {
					continue
				}
				for _, e := range s.Endpoints {
					ready := len(e.Addresses) > 0 && ptr.Deref(e.Conditions.Ready, true)
					if ready && rules.Refusal(e.Addresses[0], *port.Port) == "" {
						addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*port.Port))))
					}
				}
			}
		}
		return addresses, nil
	}
}
