package proxy

import (
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// caller is who asked: not whom it impersonates. Nil: nobody that is known here.
func caller(d *Decision) user.Info {
	if d.Impersonator != nil {
		return d.Impersonator
	}
	return d.User
}

// attributes are what the audit policy decides by.
func attributes(d *Decision) authorizer.AttributesRecord {
	r := &d.Request
	return authorizer.AttributesRecord{
		User: caller(d), Verb: r.Verb, ResourceRequest: r.IsResource, APIGroup: r.Group, APIVersion: r.Version, Namespace: r.Namespace, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, Path: r.Path,
	}
}

// endless reports whether a request is long-running. One that impersonates has not been decided upon so far.
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

// sourceIPs is where a request came from: what a trusted front proxy says, and the other end of the connection. Anybody else's X-Forwarded-For is a claim.
func sourceIPs(h *Head, d *Decision) []string {
	var ips []string
	if d.Credentials.Kind == authn.KindFrontProxy {
		for ip := range strings.SplitSeq(h.get("x-forwarded-for"), ",") {
			if ip = strings.TrimSpace(ip); ip != "" && len(ips) < maxSources {
				ips = append(ips, ip)
			}
		}
	}
	return append(ips, h.RemoteIP)
}

// maxSources bounds what is believed to be a chain of proxies.
const maxSources = 16

// trusted reports whether a caller's trace is continued: kube-apiserver's own rule (filters.WithTracing). Anybody else could make this process sample every
// request, or write into the traces of others; for them a new trace is begun, with a link.
func trusted(u user.Info) bool {
	if u == nil {
		return false
	}
	for _, g := range u.GetGroups() {
		if g == user.SystemPrivilegedGroup || g == user.MonitoringGroup {
			return true
		}
	}
	return false
}

// spanName is kube-apiserver's: the path with its names taken out, so that there are as many as there are resources.
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

// attempted is how somebody tried to be known.
func attempted(k authn.Kind) string {
	switch k {
	case authn.KindToken:
		return "attempted: bearer"
	case authn.KindCertificate, authn.KindFrontProxy, authn.KindInvalid:
		return "attempted: x509"
	}
	return "no credentials provided"
}
