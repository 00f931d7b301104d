package entrypoint

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// group is the content of one EndpointSlice: the addresses of one family and one port.
type group struct {
	kind      discoveryv1.AddressType
	port      int32
	addresses []string
}

// groups groups sorted addresses. The first group's slice has the name of kube-apiserver's only
// one, so that nothing of kube-apiserver's is left over.
func groups(addresses []netip.AddrPort) []group {
	list := []group{}
	for _, a := range addresses {
		kind := discoveryv1.AddressTypeIPv4
		if a.Addr().Is6() {
			kind = discoveryv1.AddressTypeIPv6
		}
		i := slices.IndexFunc(list, func(g group) bool { return g.kind == kind && g.port == int32(a.Port()) })
		if i < 0 {
			i = len(list)
			list = append(list, group{kind: kind, port: int32(a.Port())})
		}
		list[i].addresses = append(list[i].addresses, a.Addr().String())
	}
	if len(list) == 0 {
		return []group{{kind: discoveryv1.AddressTypeIPv4}} // an empty slice shows who emptied it
	}
	return list
}

// slice returns a group's EndpointSlice.
func (g *group) slice(name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, AddressType: g.kind}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: Manager}
	if len(g.addresses) > 0 {
		s.Ports = []discoveryv1.EndpointPort{{Name: new(portName), Port: &g.port, Protocol: new(corev1.ProtocolTCP)}}
	}
	for _, a := range g.addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	s.Annotations = map[string]string{contentAnnotation: sliceContent(s)}
	return s
}

// writeSlices writes one EndpointSlice for each family and port, and deletes our other ones.
func (p *Publisher) writeSlices(ctx context.Context, have []discoveryv1.EndpointSlice, addresses []netip.AddrPort) error {
	var faults []error
	wanted := map[string]bool{}
	for i, g := range groups(addresses) {
		name := service
		if i > 0 {
			name = fmt.Sprintf("%s-%d", service, i) // predictable, for a Role's resourceNames
		}
		wanted[name] = true
		at := slices.IndexFunc(have, func(s discoveryv1.EndpointSlice) bool { return s.Name == name })
		var old *discoveryv1.EndpointSlice
		if at >= 0 {
			old = &have[at]
		}
		faults = append(faults, p.writeSlice(ctx, old, g.slice(name)))
	}
	for i := range have {
		if s := &have[i]; !wanted[s.Name] && s.Labels[discoveryv1.LabelManagedBy] == Manager {
			faults = append(faults, p.deleteSlice(ctx, s))
		}
	}
	return errors.Join(faults...)
}

func (p *Publisher) writeSlice(ctx context.Context, have, want *discoveryv1.EndpointSlice) error {
	if have != nil && have.AddressType != want.AddressType { // addressType is immutable
		if err := p.deleteSlice(ctx, have); err != nil {
			return err
		}
		have = nil
	}
	list := p.config.Slices.EndpointSlices(metav1.NamespaceDefault)
	var err error
	switch {
	case have == nil:
		_, err = list.Create(ctx, want, metav1.CreateOptions{})
	case sliceContent(have) != sliceContent(want) || have.Annotations[contentAnnotation] != want.Annotations[contentAnnotation] || have.Labels[discoveryv1.LabelManagedBy] != Manager:
		want.ResourceVersion = have.ResourceVersion
		_, err = list.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing endpointslice %s: %w", want.Name, err)
	}
	return nil
}

func (p *Publisher) deleteSlice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	err := p.config.Slices.EndpointSlices(metav1.NamespaceDefault).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil {
		return fmt.Errorf("deleting endpointslice %s: %w", s.Name, err)
	}
	return nil
}

// sliceContent returns the content of an EndpointSlice in canonical order.
func sliceContent(s *discoveryv1.EndpointSlice) string {
	var list []string
	for _, port := range s.Ports {
		for _, e := range s.Endpoints {
			unready := ""
			if !ptr.Deref(e.Conditions.Ready, true) {
				unready = "!"
			}
			for _, a := range e.Addresses {
				list = append(list, fmt.Sprintf("%s %s%s %d", ptr.Deref(port.Name, ""), unready, a, ptr.Deref(port.Port, 0)))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
