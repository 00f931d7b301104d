package entrypoint

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/metric"
)

const (
	// leaseLabel selects the Leases of all replicas.
	leaseLabel = "fairlead.dev/entrypoint"
	// addressAnnotation holds the address of a Lease's replica.
	addressAnnotation = "fairlead.dev/advertise-address"
)

// members is what this replica has seen of all Leases.
type members struct {
	known map[string]*member // :: name of the Lease
	last  time.Time          // of the latest list that showed that Leases can be written
}

type member struct {
	version string    // its resourceVersion
	seen    time.Time // when this replica saw it change, or first saw it
	alive   bool
}

// leaseName is unique per address: a new process there takes over its predecessor's Lease.
func leaseName(a netip.AddrPort) string {
	return fmt.Sprintf("fairlead-entrypoint-%s-%d", strings.NewReplacer(":", "-", ".", "-").Replace(a.Addr().StringExpanded()), a.Port())
}

// observe returns the live Leases and the expired ones. wrote says that this replica has just written its own. A Lease
// expires only while it, or another one, can be written: an apiserver whose etcd is full still lists.
func (m *members) observe(leases []coordinationv1.Lease, wrote bool, now time.Time) (alive, dead []*coordinationv1.Lease) {
	writable := wrote || slices.ContainsFunc(leases, func(l coordinationv1.Lease) bool {
		k := m.known[l.Name]
		return k == nil || k.version != l.ResourceVersion
	})
	if writable {
		if now.Sub(m.last) > leaseDuration {
			for _, k := range m.known {
				k.seen = now // nobody could renew, or we may have missed it
			}
		}
		m.last = now
	}
	names := map[string]bool{}
	for i := range leases {
		l := &leases[i]
		names[l.Name] = true
		k := m.known[l.Name]
		switch {
		case k == nil:
			// No renewal seen yet: trust the Lease's renewTime.
			k = &member{version: l.ResourceVersion, seen: now, alive: l.Spec.RenewTime != nil && now.Before(l.Spec.RenewTime.Add(leaseDuration))}
			m.known[l.Name] = k
		case k.version != l.ResourceVersion:
			k.version, k.seen, k.alive = l.ResourceVersion, now, true
		case writable && now.Sub(k.seen) >= leaseDuration:
			k.alive = false
			dead = append(dead, l)
		}
		if k.alive {
			alive = append(alive, l)
		}
	}
	maps.DeleteFunc(m.known, func(name string, _ *member) bool { return !names[name] })
	return alive, dead
}

// liveAddresses renews our Lease if we are ready, or drops it, and returns those of live replicas.
func (p *Publisher) liveAddresses(ctx context.Context, ready bool) ([]netip.AddrPort, error) {
	list, err := p.config.Client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: leaseLabel})
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	own := leaseName(p.config.Address)
	var mine *coordinationv1.Lease
	list.Items = slices.DeleteFunc(list.Items, func(l coordinationv1.Lease) bool {
		if l.Name != own {
			return false
		}
		mine = &l
		return ready || held(mine, p.config.Identity) // another process's Lease counts like any other
	})
	if ready {
		err = p.renew(ctx, mine)
	} else if mine != nil && held(mine, p.config.Identity) { // another process may have taken it over
		err = p.remove(ctx, mine)
	}
	if err != nil {
		return nil, err
	}
	if ready != p.published {
		p.log.Info("the lease of this replica changed", "address", p.config.Address.String(), "published", ready)
	}
	p.published = ready
	p.metrics.published.Set(metric.Number(ready))
	alive, dead := p.members.observe(list.Items, ready, time.Now())
	for _, l := range dead { // so that a replica that starts later does not wait for them to expire again
		if err := p.remove(ctx, l); err != nil {
			p.log.Debug("cannot delete an expired lease", "lease", l.Name, "err", err) // a later round tries again
			continue
		}
		p.log.Warn("a replica's lease has expired", "lease", l.Name, "address", l.Annotations[addressAnnotation])
	}
	var addresses []netip.AddrPort
	if ready {
		addresses = append(addresses, p.config.Address)
	}
	for _, l := range alive {
		// Anyone who may write Leases in kube-system may publish an address, but not an invalid
		// one: Kubernetes would refuse the whole list.
		a, err := netip.ParseAddrPort(l.Annotations[addressAnnotation])
		if err == nil {
			err = CheckAddress(a.Addr())
		}
		if err != nil || a.Port() == 0 {
			p.log.Debug("a lease has no address", "lease", l.Name, "err", err)
			continue
		}
		addresses = append(addresses, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	return slices.Compact(addresses), nil
}

func held(l *coordinationv1.Lease, identity string) bool {
	return ptr.Deref(l.Spec.HolderIdentity, "") == identity
}

// renew extends our Lease. It takes the Lease over from an earlier process at our address.
func (p *Publisher) renew(ctx context.Context, mine *coordinationv1.Lease) error {
	leases := p.config.Client.CoordinationV1().Leases(metav1.NamespaceSystem)
	lease := cmp.Or(mine, &coordinationv1.Lease{}).DeepCopy()
	lease.Namespace, lease.Name = metav1.NamespaceSystem, leaseName(p.config.Address)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, leaseLabel, "")
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, addressAnnotation, p.config.Address.String())
	lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &p.config.Identity, new(metav1.NowMicro()), new(int32(leaseDuration/time.Second))
	var err error
	if mine == nil {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing lease: %w", err)
	}
	return nil
}

// remove deletes a Lease unless it has been renewed, or made anew, since it was read.
func (p *Publisher) remove(ctx context.Context, l *coordinationv1.Lease) error {
	err := p.config.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, l.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{ResourceVersion: &l.ResourceVersion},
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("dropping lease: %w", err)
}
