package proxy

import (
	"net"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// caller returns the user that sent the request, even if it impersonates another. Nil means
// unknown.
func caller(d *Decision) user.Info {
	if d.Impersonator != nil {
		return d.Impersonator
	}
	return d.User
}

// attributes returns the audit policy's input.
func attributes(d *Decision) authorizer.AttributesRecord {
	r := &d.Request
	return authorizer.AttributesRecord{
		User: caller(d), Verb: r.Verb, ResourceRequest: r.IsResource, APIGroup: r.Group, APIVersion: r.Version, Namespace: r.Namespace, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, Path: r.Path,
	}
}

// endless reports whether a request is long-running. With impersonation that is not decided yet.
func endless(h *Head, d *Decision) bool {
	if d.Action != Impersonate {
		return d.LongRunning
	}
	var declared []string
	if d.Entry != nil {
		declared = d.Entry.Policy.LongRunningSubresources
	}
	return h.Upgrade != "" || longPage(h) || d.Request.longRunning(declared)
}

// sourceIPs returns the client's addresses: those of a trusted front proxy's X-Forwarded-For, and
// the other end of the connection. From other clients that header is not trusted. As in
// kube-apiserver, what is no address is left out: a proxy passes on what its client has sent. So
// the nearest addresses, which proxies have added, are kept.
func sourceIPs(h *Head, d *Decision) []string {
	ips := []string{h.RemoteIP}
	if d.Credentials.Kind != authn.KindFrontProxy {
		return ips
	}
	for list := h.list("x-forwarded-for"); list != "" && len(ips) <= maxSources; {
		at := strings.LastIndexByte(list, ',')
		if ip := net.ParseIP(strings.TrimSpace(list[at+1:])); ip != nil {
			ips = append(ips, ip.String()) // without keeping the field in memory
		}
		list = list[:max(at, 0)]
	}
	slices.Reverse(ips)
	return ips
}

// maxSources bounds the addresses of a chain of proxies.
const maxSources = 16

// trusted reports whether a caller's trace is continued, by kube-apiserver's rule
// (filters.WithTracing). Other callers could make this process sample every request, or write into
// foreign traces; they get a new trace with a link.
func trusted(u user.Info) bool {
	return u != nil && (slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) || slices.Contains(u.GetGroups(), user.MonitoringGroup))
}

// spanName returns kube-apiserver's name of a span: the path without names, so that their number is
// bounded by the resources.
func spanName(method string, r *Request) string {
	if !r.IsResource {
		return method
	}
	name := "/api"
	if r.Group != "" {
		name = "/apis/" + r.Group
	}
	name += "/" + r.Version
	if r.Namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + r.Resource
	if r.Name != "" {
		name += "/{:name}"
	}
	if r.Subresource != "" {
		name += "/" + r.Subresource
	}
	return method + " " + name
}

// attempted says how the caller tried to authenticate.
func attempted(k authn.Kind) string {
	switch k {
	case authn.KindToken, authn.KindIssued:
		return "attempted: bearer"
	case authn.KindCertificate, authn.KindFrontProxy, authn.KindInvalid:
		return "attempted: x509"
	}
	return "no credentials provided"
}
