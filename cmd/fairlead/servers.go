package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	leaseTime   = time.Minute // by which a renewal, every 10 s, may be older than another server's: clocks differ
)

// follows returns a function that makes the servers those that find returns, and says when to call it again. Without
// one that can be used all stay as they are: a read that fails, or sees an empty list, takes no server away. After an
// empty list those that are known count as all.
func (k *kube) follows(find func(context.Context) ([]string, error)) func(context.Context) (again time.Duration) {
	return func(ctx context.Context) time.Duration {
		ctx, cancel := context.WithTimeout(ctx, 2*followEvery)
		defer cancel()
		addresses, err := find(ctx)
		fault := err
		if err == nil && len(addresses) == 0 {
			fault = errors.New("--local-apiservers-from names none that can be used")
		} else if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			fault = nil // the checks kubeconfig and rights tell it
		}
		if k.found.Note(fault); err != nil {
			return time.Second // it may just start, after this process: only those that the operator named are known
		}
		found := sets.New(addresses...) // first those that the operator named
		named := slices.DeleteFunc(slices.Clone(k.servers), func(a string) bool { return !found.Has(a) })
		order := append(named, sets.List(found.Delete(named...))...)
		k.pools.Follow(order[:min(len(order), maxFollowed)])
		latest.Wake(k.news)
		return followEvery
	}
}

// leased finds the kube-apiservers that renew their Leases (kubernetes' APIServerIdentity). Those have names of hosts
// and no ports: that of the first server that the operator named. While etcd is full none can renew its Lease, and all
// serve on: one ends only after another's renewal, and not while it is healthy, since others renew up to 10 s later.
func (k *kube) leased(from coordinationv1client.LeaseInterface) func(context.Context) ([]string, error) {
	return func(ctx context.Context) (addresses []string, err error) {
		_, port, _ := net.SplitHostPort(k.servers[0]) // addressOf has made it
		all, err := from.List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil {
			return nil, err
		}
		now, ages := time.Now(), make([]time.Duration, len(all.Items))
		for i, l := range all.Items {
			ages[i] = max(0, now.Sub(ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}).Time))
		}
		for i, l := range all.Items {
			host := l.Labels[corev1.LabelHostname]
			address := net.JoinHostPort(host, port)
			if host != "" && (ages[i]-slices.Min(ages) < leaseTime || k.pools.At(address).Ready()) {
				addresses = append(addresses, address)
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
