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
	"k8s.io/utils/ptr"
)

const (
	service  = "kubernetes" // kube-apiserver's own, in namespace default, made even without its reconciler
	portName = "https"      // of the Service's only port
	// Manager is the slices' managed-by label: Kubernetes' own controllers leave them alone.
	Manager = "fairlead.dev"
	// contentAnnotation repeats what was published: if the content differs, another has changed it.
	contentAnnotation = "fairlead.dev/published"
	// zonesAnnotation repeats zones: older releases know only the other, and must not take us for another writer.
	zonesAnnotation = "fairlead.dev/published-zones"
)

// read returns the Endpoints, which have no name if there are none, and the EndpointSlices.
func (p *Publisher) read(ctx context.Context) (*corev1.Endpoints, []discoveryv1.EndpointSlice, error) {
	have, err := p.config.Client.CoreV1().Endpoints(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have = &corev1.Endpoints{}
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading endpoints: %w", err)
	}
	list, err := p.config.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, nil, fmt.Errorf("listing endpointslices: %w", err)
	}
	return have, list.Items, nil
}

// mayWrite finds out whether another writer has changed the objects, and gives way to one that does so repeatedly.
func (p *Publisher) mayWrite(have *corev1.Endpoints, list []discoveryv1.EndpointSlice, now time.Time) bool {
	c := &p.contest
	// An empty list is overwritten at once, whoever wrote it: the last kube-apiserver that
	// published itself removes itself when it ends, and in-cluster clients would find no server.
	if now.Before(c.until) && content(have) != "" {
		return false
	}
	if !c.until.IsZero() {
		c.until = time.Time{}
		return true // the content is the one we gave way to, not a new write
	}
	if !foreign(have, list) {
		const quiet = time.Minute // kube-apiserver's reconciler writes every 10 s
		if c.last.IsZero() || now.Sub(c.last) < quiet {
			return true
		}
		if c.pause > 0 {
			p.metrics.contested.Set(0)
			p.log.Info("no other writer changes the endpoints of default/kubernetes any more")
		}
		*c = contest{}
		return true
	}
	first := c.last.IsZero()
	c.last = now
	p.metrics.foreign.Inc()
	p.log.Warn("another writer has changed the endpoints of default/kubernetes", "endpoints", content(have))
	if first || content(have) == "" { // it may be a mistake
		return true
	}
	// Long enough that in-cluster clients do not switch back and forth, short enough that we take
	// over soon after the last kube-apiserver was restarted without its reconciler.
	c.pause = min(max(2*c.pause, time.Minute), 5*time.Minute)
	c.until = now.Add(c.pause)
	c.last = c.until // the quiet time starts after the pause; one more write after it is enough
	p.metrics.contested.Set(1)
	p.log.Error("another writer, probably kube-apiserver's own reconciler, keeps changing the endpoints of "+
		"default/kubernetes: run kube-apiserver with --endpoint-reconciler-type=none", "pause", c.pause.String())
	return false
}

// foreign reports whether another writer has changed objects that Fairlead published.
// kube-apiserver keeps the annotations of Endpoints and drops those of the EndpointSlice.
func foreign(have *corev1.Endpoints, list []discoveryv1.EndpointSlice) bool {
	recorded, ours := have.Annotations[contentAnnotation] // if they are not, we take the object over
	return ours && (recorded != content(have) || slices.ContainsFunc(list, func(s discoveryv1.EndpointSlice) bool {
		return s.Name == service && altered(&s)
	}))
}

func altered(s *discoveryv1.EndpointSlice) bool {
	return s.Annotations[contentAnnotation] != sliceContent(s) || s.Annotations[zonesAnnotation] != zonesOf(s)
}

// writeEndpoints writes the Endpoints, for clients that read no EndpointSlices.
func (p *Publisher) writeEndpoints(ctx context.Context, have *corev1.Endpoints, zones map[netip.AddrPort]string) error {
	want := have.DeepCopy()
	want.Namespace, want.Name, want.Subsets = metav1.NamespaceDefault, service, nil
	for _, g := range groups(zones) { // one for each family and port
		s := corev1.EndpointSubset{}
		s.Ports = []corev1.EndpointPort{{Name: portName, Port: g.port, Protocol: corev1.ProtocolTCP}}
		for _, e := range g.endpoints {
			s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: e.Addresses[0]})
		}
		if len(s.Addresses) > 0 {
			want.Subsets = append(want.Subsets, s)
		}
	}
	text, skips := content(want), have.Labels[discoveryv1.LabelSkipMirror] == "true"
	if content(have) == text && have.Annotations[contentAnnotation] == text && skips {
		return nil
	}
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, contentAnnotation, text)
	metav1.SetMetaDataLabel(&want.ObjectMeta, discoveryv1.LabelSkipMirror, "true") // the EndpointSlices are ours too
	var err error
	if have.Name == "" {
		_, err = p.config.Client.CoreV1().Endpoints(metav1.NamespaceDefault).Create(ctx, want, metav1.CreateOptions{})
	} else {
		_, err = p.config.Client.CoreV1().Endpoints(metav1.NamespaceDefault).Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing endpoints: %w", err)
	}
	p.log.Info("published the cluster's entrypoint", "endpoints", text)
	return nil
}

func content(e *corev1.Endpoints) string {
	var list []string
	for _, s := range e.Subsets {
		for _, port := range s.Ports {
			for mark, all := range map[string][]corev1.EndpointAddress{"": s.Addresses, "!": s.NotReadyAddresses} {
				for _, a := range all {
					list = append(list, fmt.Sprintf("%s %s%s %d", port.Name, mark, a.IP, port.Port))
				}
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// group is the content of one EndpointSlice: the addresses of one family and one port.
type group struct {
	kind      discoveryv1.AddressType
	port      int32
	endpoints []discoveryv1.Endpoint
}

// groups groups addresses. The first one's slice has the name of kube-apiserver's only one, of which nothing is left.
func groups(zones map[netip.AddrPort]string) []group {
	list := []group{}
	for _, a := range slices.SortedFunc(maps.Keys(zones), netip.AddrPort.Compare) {
		kind := discoveryv1.AddressTypeIPv4
		if a.Addr().Is6() {
			kind = discoveryv1.AddressTypeIPv6
		}
		i := slices.IndexFunc(list, func(g group) bool { return g.kind == kind && g.port == int32(a.Port()) })
		if i < 0 {
			i = len(list)
			list = append(list, group{kind: kind, port: int32(a.Port())})
		}
		e := discoveryv1.Endpoint{Addresses: []string{a.Addr().String()}}
		e.Conditions.Ready = new(true)
		if zone := zones[a]; zone != "" {
			e.Zone, e.Hints = &zone, &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
		list[i].endpoints = append(list[i].endpoints, e)
	}
	if len(list) == 0 {
		return []group{{kind: discoveryv1.AddressTypeIPv4}} // an empty slice shows who emptied it
	}
	return list
}

func (g *group) slice(name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: g.kind, Endpoints: g.endpoints}
	s.Namespace, s.Name = metav1.NamespaceDefault, name
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: Manager}
	if len(g.endpoints) > 0 {
		s.Ports = []discoveryv1.EndpointPort{{Name: new(portName), Port: &g.port, Protocol: new(corev1.ProtocolTCP)}}
	}
	s.Annotations = map[string]string{contentAnnotation: sliceContent(s)}
	if zones := zonesOf(s); zones != "" {
		s.Annotations[zonesAnnotation] = zones
	}
	return s
}

// writeSlices writes one EndpointSlice for each family and port, and deletes our other ones beside the first.
func (p *Publisher) writeSlices(ctx context.Context, have []discoveryv1.EndpointSlice, want []group) (err error) {
	old := map[string]*discoveryv1.EndpointSlice{} // :: name → one that is not wanted
	for i := range have {
		old[have[i].Name] = &have[i]
	}
	for i, g := range want {
		name := service
		if i > 0 {
			name = fmt.Sprintf("%s-%d", service, i) // predictable, for a Role's resourceNames
		}
		err = errors.Join(err, p.writeSlice(ctx, old[name], g.slice(name)))
		delete(old, name)
	}
	for _, s := range old {
		if s.Labels[discoveryv1.LabelManagedBy] == Manager && s.Name != service {
			err = errors.Join(err, p.deleteSlice(ctx, s))
		}
	}
	return err
}

func (p *Publisher) writeSlice(ctx context.Context, have, want *discoveryv1.EndpointSlice) error {
	if have != nil && have.AddressType != want.AddressType { // addressType is immutable
		if err := p.deleteSlice(ctx, have); err != nil {
			return err
		}
		have = nil
	}
	list := p.config.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	var err error
	switch {
	case have == nil:
		_, err = list.Create(ctx, want, metav1.CreateOptions{})
	case altered(have) || sliceContent(have) != sliceContent(want) || zonesOf(have) != zonesOf(want) ||
		have.Labels[discoveryv1.LabelManagedBy] != Manager:
		want.ResourceVersion = have.ResourceVersion
		_, err = list.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing endpointslice %s: %w", want.Name, err)
	}
	return nil
}

func (p *Publisher) deleteSlice(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	err := p.config.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Delete(ctx, s.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil && !apierrors.IsNotFound(err) { // another replica may be faster
		return fmt.Errorf("deleting endpointslice %s: %w", s.Name, err)
	}
	return nil
}

func sliceContent(s *discoveryv1.EndpointSlice) string {
	var list []string
	for _, p := range s.Ports {
		for _, e := range s.Endpoints {
			unready := map[bool]string{false: "!"}[ptr.Deref(e.Conditions.Ready, true)]
			for _, a := range e.Addresses {
				list = append(list, fmt.Sprintf("%s %s%s %d", ptr.Deref(p.Name, ""), unready, a, ptr.Deref(p.Port, 0)))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// zonesOf returns the zones of an EndpointSlice's endpoints, and those for which they are meant.
func zonesOf(s *discoveryv1.EndpointSlice) string {
	var list []string
	for _, e := range s.Endpoints {
		if e.Zone == nil && e.Hints == nil {
			continue
		}
		text := []string{strings.Join(e.Addresses, " "), "in", ptr.Deref(e.Zone, "")}
		for _, z := range ptr.Deref(e.Hints, discoveryv1.EndpointHints{}).ForZones {
			text = append(text, "for", z.Name)
		}
		list = append(list, strings.Join(text, " "))
	}
	return strings.Join(list, ", ")
}

// contest is what is known of another writer. The zero value means there is none.
type contest struct {
	last  time.Time     // of its latest write; zero means none since the last quiet time
	pause time.Duration // how long we give way; zero means not yet
	until time.Time     // we write nothing before
}
