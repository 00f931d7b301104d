package entrypoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// service is kube-apiserver's own, in namespace default. kube-apiserver makes it also without
	// its reconciler.
	service = "kubernetes"
	// portName is that of the Service's only port.
	portName = "https"
	// manager is who manages the EndpointSlices, so that Kubernetes' own controllers leave them
	// alone.
	manager = "fairlead.dev"
	// contentAnnotation repeats what Fairlead has published: an object that says something else was
	// written by another.
	contentAnnotation = "fairlead.dev/published"
)

// publish makes the objects say the addresses.
func (p *Publisher) publish(ctx context.Context, addresses []netip.AddrPort) error {
	have, err := p.config.Endpoints.Endpoints(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("reading endpoints: %w", err)
	}
	list, err := p.config.Slices.EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return fmt.Errorf("listing endpointslices: %w", err)
	}
	if !p.mayWrite(have, list.Items, time.Now()) {
		return nil
	}
	return errors.Join(p.writeEndpoints(ctx, have, addresses), p.writeSlices(ctx, list.Items, addresses))
}

// mayWrite looks whether somebody else has written since Fairlead did, and gives way to whoever
// does so again.
func (p *Publisher) mayWrite(have *corev1.Endpoints, list []discoveryv1.EndpointSlice, now time.Time) bool {
	// An empty list is overwritten at once, whoever wrote it: the last kube-apiserver that
	// published itself removes itself as it ends, and in-cluster clients would reach nobody.
	if p.contest.paused(now) && content(have) != "" {
		return false
	}
	waking := !p.contest.until.IsZero()
	p.contest.until = time.Time{}
	if waking {
		return true // what is there is what was given way to, not a new write
	}
	if foreign(have, list) {
		p.metrics.foreign.Inc()
		p.contest.strike(now)
		p.log.Warn("somebody else has written the endpoints of default/kubernetes", "endpoints", content(have))
		if p.contest.paused(now) {
			p.metrics.contested.Set(1)
			p.log.Error("kube-apiserver's own reconciler, or somebody else, keeps writing the endpoints of default/kubernetes: set its flag --endpoint-reconciler-type=none",
				"pause", p.contest.pause.String())
			return false
		}
	} else if p.contest.settled(now) {
		p.metrics.contested.Set(0)
		p.log.Info("nobody else writes the endpoints of default/kubernetes any more")
	}
	return true
}

// foreign reports whether another writer has changed objects that Fairlead published.
// kube-apiserver keeps the annotations of Endpoints and drops those of the EndpointSlice.
func foreign(have *corev1.Endpoints, list []discoveryv1.EndpointSlice) bool {
	if have == nil {
		return false
	}
	said, ours := have.Annotations[contentAnnotation]
	if !ours {
		return false // never published before: what is there is to be taken over
	}
	if said != content(have) {
		return true
	}
	return slices.ContainsFunc(list, func(s discoveryv1.EndpointSlice) bool {
		return s.Name == service && s.Annotations[contentAnnotation] != sliceContent(&s)
	})
}

// writeEndpoints is for clients that read no EndpointSlices.
func (p *Publisher) writeEndpoints(ctx context.Context, have *corev1.Endpoints, addresses []netip.AddrPort) error {
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: service}}
	if have != nil {
		want = have.DeepCopy()
	}
	want.Subsets = subsets(addresses)
	text := content(want)
	if have != nil && content(have) == text && have.Annotations[contentAnnotation] == text && have.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, contentAnnotation, text)
	metav1.SetMetaDataLabel(&want.ObjectMeta, discoveryv1.LabelSkipMirror, "true") // the EndpointSlices are ours too
	var err error
	if have == nil {
		_, err = p.config.Endpoints.Endpoints(metav1.NamespaceDefault).Create(ctx, want, metav1.CreateOptions{})
	} else {
		_, err = p.config.Endpoints.Endpoints(metav1.NamespaceDefault).Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing endpoints: %w", err)
	}
	p.log.Info("published the cluster's entrypoint", "endpoints", text)
	return nil
}

// subsets has one for each port.
func subsets(addresses []netip.AddrPort) []corev1.EndpointSubset {
	ports := map[uint16]*corev1.EndpointSubset{}
	for _, a := range addresses {
		s := ports[a.Port()]
		if s == nil {
			s = &corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: portName, Port: int32(a.Port()), Protocol: corev1.ProtocolTCP}}}
			ports[a.Port()] = s
		}
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: a.Addr().String()})
	}
	var list []corev1.EndpointSubset
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		list = append(list, *ports[port])
	}
	return list
}

// content is what Endpoints say, in an order of its own.
func content(e *corev1.Endpoints) string {
	if e == nil {
		return ""
	}
	var list []string
	for _, s := range e.Subsets {
		for _, port := range s.Ports {
			for _, a := range s.Addresses {
				list = append(list, fmt.Sprintf("%s %s %d", port.Name, a.IP, port.Port))
			}
			for _, a := range s.NotReadyAddresses {
				list = append(list, fmt.Sprintf("%s !%s %d", port.Name, a.IP, port.Port))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
