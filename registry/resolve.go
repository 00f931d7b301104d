package registry

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// resolver finds the endpoints of an APIService's Service. Its checks, their order, reasons and messages are those of
// kube-aggregator's availability controller (pkg/controllers/status/remote) and k8s.io/apiserver/pkg/util/proxy.
type resolver struct {
	options *Options
	ref     *apiregistrationv1.ServiceReference
	port    int32
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice

	endpoints []Endpoint // what it has found
	refused   []string   // addresses that must not be dialled, each with the reason
	unused    int        // how many of those looked at are beyond maxEndpoints
}

// resolve finds them. Its result says why there is none, in kube-aggregator's words. Zero means no fault.
func (r *resolver) resolve() Verdict {
	name, in := bounded(r.ref.Name), bounded(r.ref.Namespace) // the API allows any text
	if r.service == nil {
		return fault(ReasonServiceNotFound, "service/%s in %q is not present", name, in)
	}
	at := slices.IndexFunc(r.service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == r.port })
	port, found := "", at >= 0
	if found {
		port = r.service.Spec.Ports[at].Name // slices identify ports by name only
	}
	kind := cmp.Or(r.service.Spec.Type, corev1.ServiceTypeClusterIP)
	ofClusterIP := kind == corev1.ServiceTypeClusterIP // headless or not
	ready := func(s *discoveryv1.EndpointSlice) bool { return slices.ContainsFunc(s.Endpoints, usable) }
	switch {
	case ofClusterIP && !found:
		return fault(ReasonServicePortError, "service/%s in %q is not listening on port %d", name, in, r.port)
	case ofClusterIP && len(r.slices) == 0:
		return fault(ReasonEndpointsNotFound, "cannot find endpointslices for service/%s in %q", name, in)
	case ofClusterIP && !slices.ContainsFunc(r.slices, func(s *discoveryv1.EndpointSlice) bool {
		return slicePort(s, port) != 0 && ready(s)
	}):
		if slices.ContainsFunc(r.slices, ready) {
			return fault(ReasonMissingEndpoints, "ready endpointslices have no port with name %q, of service/%s in %q",
				port, name, in)
		}
		return fault(ReasonMissingEndpoints, "endpointslices for service/%s in %q have no addresses with port name %q",
			name, in, port)
	case kind == corev1.ServiceTypeExternalName:
		return r.one(r.service.Spec.ExternalName, "external name")
	case !ofClusterIP && kind != corev1.ServiceTypeNodePort && kind != corev1.ServiceTypeLoadBalancer:
		return fault(ReasonFailedDiscoveryCheck, "unsupported service type %q", kind)
	case r.options.ClusterIPRouting && r.service.Spec.ClusterIP == corev1.ClusterIPNone:
		return fault(ReasonFailedDiscoveryCheck, "cannot route to service with ClusterIP \"None\"")
	case !found:
		return fault(ReasonFailedDiscoveryCheck, "no service port %d found for service %q", r.port, name)
	case r.options.ClusterIPRouting:
		return r.one(r.service.Spec.ClusterIP, "cluster IP")
	}
	return r.fromSlices(port)
}

func fault(reason, format string, args ...any) Verdict {
	return Verdict{Status: corev1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// one finds the endpoint of a Service that has one address.
func (r *resolver) one(host, what string) Verdict {
	if host == "" {
		return fault(ReasonFailedDiscoveryCheck, "service/%s in %q has no %s", r.ref.Name, r.ref.Namespace, what)
	}
	if why := r.options.Reach.Refusal(host, r.port); why != "" {
		return fault(ReasonFailedDiscoveryCheck, "the %s of service/%s in %q is refused: %s",
			what, r.ref.Name, r.ref.Namespace, why)
	}
	r.endpoints = []Endpoint{{Address: net.JoinHostPort(host, strconv.Itoa(int(r.port)))}}
	return Verdict{}
}

// fromSlices finds the endpoints of the slices that have the port: those of the Service's primary IP family if there
// are any (the other has the same pods), ready ones first, and last, as for kube-proxy (KEP-1669), terminating ones.
func (r *resolver) fromSlices(port string) Verdict {
	var preferred, others family
	families := r.service.Spec.IPFamilies // the primary one is the first. Empty: it names none
	for _, s := range r.slices {
		number := slicePort(s, port)
		if number == 0 {
			continue
		}
		to := &others
		if len(families) == 0 || s.AddressType == discoveryv1.AddressType(families[0]) {
			to = &preferred
		}
		for i := range s.Endpoints {
			r.add(to, &s.Endpoints[i], number)
		}
	}
	if len(preferred.endpoints) == 0 {
		preferred = others
	}
	r.endpoints = preferred.ordered()
	switch {
	case len(r.endpoints) > 0:
		r.unused = max(len(r.endpoints)-maxEndpoints, 0)
		r.endpoints = r.endpoints[:len(r.endpoints)-r.unused]
		return Verdict{}
	case len(r.refused) > 0:
		return fault(ReasonMissingEndpoints,
			"endpointslices for service/%s in %q have only addresses that are refused: %s",
			r.ref.Name, r.ref.Namespace, strings.Join(r.refused, ", "))
	}
	return fault(ReasonFailedDiscoveryCheck, "no endpoints available for service %q", r.ref.Name)
}

const (
	// maxEndpoints bounds the endpoints of an APIService. The authors of EndpointSlices decide how many there are, and
	// each is probed, compared with the others, and looked up whenever one changes. An Endpoints object has as many.
	maxEndpoints = 1000
	maxSeen      = 8000 // bounds those looked at: to sort 100,000 would take each table 0.1 s
	maxRefused   = 5    // bounds how many refused addresses a message names
)

// family are the endpoints of one IP family. Those without the hint for this replica's zone are Far, if hints count.
type family struct {
	endpoints      []Endpoint
	seen           int  // how many that take requests were looked at
	near, unhinted bool // a ready one has the hint, or has none at all
}

func (r *resolver) add(to *family, e *discoveryv1.Endpoint, port int32) {
	if !usable(*e) || len(e.Addresses) == 0 || to.seen == maxSeen {
		return
	}
	to.seen++
	// Only the first address counts, as upstream: per the API all are the same endpoint.
	if why := r.options.Reach.Refusal(e.Addresses[0], port); why != "" {
		if len(r.refused) < maxRefused && !slices.Contains(r.refused, why) {
			r.refused = append(r.refused, why)
		}
		return
	}
	zones := ptr.Deref(e.Hints, discoveryv1.EndpointHints{}).ForZones
	near := r.options.Zone != "" && slices.Contains(zones, discoveryv1.ForZone{Name: r.options.Zone})
	terminating := ptr.Deref(e.Conditions.Terminating, false)
	to.near, to.unhinted = to.near || near && !terminating, to.unhinted || len(zones) == 0 && !terminating
	to.endpoints = append(to.endpoints, Endpoint{
		Address: net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(port))), Terminating: terminating,
		Far: len(zones) > 0 && !near,
	})
}

// usable reports whether an endpoint takes requests: it is ready (unset means ready), or terminating and still serves.
func usable(e discoveryv1.Endpoint) bool {
	c := &e.Conditions
	return ptr.Deref(c.Ready, true) || ptr.Deref(c.Terminating, false) && ptr.Deref(c.Serving, false)
}

func slicePort(s *discoveryv1.EndpointSlice, name string) int32 {
	for _, p := range s.Ports {
		if n := ptr.Deref(p.Port, 0); n >= 1 && n <= 65535 && ptr.Deref(p.Name, "") == name {
			return n
		}
	}
	return 0
}

// ordered sorts endpoints, ready and near ones first, and drops duplicates: a pod that moves between
// slices may be in both, and the ready endpoint counts. Hints count as for kube-proxy
// (pkg/proxy/topology.go): only if every ready endpoint has some, and one has this replica's zone.
func (f *family) ordered() []Endpoint {
	endpoints := f.endpoints
	for i := range endpoints {
		endpoints[i].Far = endpoints[i].Far && f.near && !f.unhinted
	}
	rank := func(e Endpoint) float64 { return 2*metric.Number(e.Terminating) + metric.Number(e.Far) }
	readyFirst := func(a, b Endpoint) int { return cmp.Compare(rank(a), rank(b)) }
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), readyFirst(a, b))
	})
	endpoints = slices.CompactFunc(endpoints, func(a, b Endpoint) bool { return a.Address == b.Address })
	slices.SortStableFunc(endpoints, readyFirst)
	return endpoints
}
