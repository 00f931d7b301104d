package proxy

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Request is what a method and a path ask for in Kubernetes' terms, with equal values (a fuzz test compares them), but
// without APIPrefix and Parts, with group and version only for resources. Its strings share the path's memory.
type Request request.RequestInfo

// parseRequest parses a request head. It has the result of upstream's RequestInfoFactory.NewRequestInfo, but parses
// selectors only where they change the result: upstream needs half a second for 240 KB of them.
func parseRequest(method, path, rawQuery string) Request {
	if strings.IndexByte(path, '%') >= 0 {
		if p, err := url.PathUnescape(path); err == nil {
			path = p
		}
	}
	r, viaPath := parsePath(method, path)
	if !r.IsResourceRequest || viaPath || r.Name != "" {
		return r
	}
	switch watch, ok := param(rawQuery, "watch"); { // without a name, so of a collection
	case r.Verb == "get" && ok && saysYes(watch):
		r.Verb = "watch"
	case r.Verb == "get":
		r.Verb = "list"
	case r.Verb == "delete":
		r.Verb = "deletecollection"
	}
	// A plain query is surely without selectors.
	plain := !strings.ContainsAny(rawQuery, "%+;") && !strings.Contains(rawQuery, "Selector")
	if plain || len(rawQuery) > maxSelectors {
		return r
	}
	switch r.Verb {
	case "list", "watch", "deletecollection":
		r.FieldSelector, _ = param(rawQuery, "fieldSelector")
		r.LabelSelector, _ = param(rawQuery, "labelSelector")
	}
	if r.Verb != "deletecollection" {
		r.Name = namedBy(r.FieldSelector, rawQuery) //fairlead:boundary 1 KiB, else at the desk
	}
	return r
}

// param returns the first decodable value of a query parameter, as url.ParseQuery does, but without a map.
func param(q, name string) (value string, ok bool) {
	for pair := range strings.SplitSeq(q, "&") {
		key, value, _ := strings.Cut(pair, "=")
		if len(key) > 3*len(name) || strings.Contains(pair, ";") {
			continue
		}
		if k, err := url.QueryUnescape(key); err != nil || k != name {
			continue
		}
		if v, err := url.QueryUnescape(value); err == nil {
			return v, true
		}
	}
	return "", false
}

// maxSelectors limits the query whose selectors are parsed: that takes about 100 µs a kilobyte, and
// the authorizer parses them again. In a longer query they are left out, so that the request needs
// permission for the whole collection. A name takes 253 bytes, and RBAC looks at no other selector.
const maxSelectors = 8 << 10

// namedBy returns the name that a field selector requires. Upstream uses it only if all list
// options can be parsed; it would log others with the query, which may hold secrets.
func namedBy(fieldSelector, rawQuery string) string {
	if !strings.Contains(fieldSelector, "metadata.name") {
		return ""
	}
	q := (&url.URL{RawQuery: rawQuery}).Query()
	var o metainternalversion.ListOptions
	err := metainternalversionscheme.ParameterCodec.DecodeParameters(q, metav1.SchemeGroupVersion, &o)
	if err != nil || o.FieldSelector == nil {
		return ""
	}
	name, ok := o.FieldSelector.RequiresExactMatch("metadata.name")
	if !ok || len(content.IsPathSegmentName(name)) > 0 {
		return ""
	}
	return name
}

// what returns what is asked for, as discovery lists it: a path stands for itself.
func (r *Request) what() schema.GroupVersionResource {
	if !r.IsResourceRequest {
		return schema.GroupVersionResource{Resource: strings.TrimSuffix(r.Path, "/")}
	}
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	return schema.GroupVersionResource{Group: r.APIGroup, Version: r.APIVersion, Resource: resource}
}

// parsePath parses a decoded path. It reports whether the path names the verb (/api/v1/watch/pods).
func parsePath(method, path string) (r Request, viaPath bool) {
	verb, lower := verbsOf(method)
	nonResource := Request{Verb: lower, Path: path}
	prefix, rest, _ := strings.Cut(strings.Trim(path, "/"), "/")
	r = Request{IsResourceRequest: true, Verb: verb, Path: path}
	switch prefix {
	case "api":
	case "apis":
		r.APIGroup, rest, _ = strings.Cut(rest, "/")
	default:
		return nonResource, false
	}
	r.APIVersion, rest, _ = strings.Cut(rest, "/")
	if rest == "" { // fewer than four segments (three for core): at most the document of a group-version
		return nonResource, false
	}
	first, after, more := strings.Cut(rest, "/")
	if viaPath = first == "watch" || first == "proxy"; viaPath {
		if !more {
			return nonResource, false
		}
		r.Verb, rest = first, after
	}
	r.parseObject(rest)
	return r, viaPath
}

// parseObject parses [namespaces/<ns>/]<resource>[/<name>[/<subresource>[/…]]].
func (r *Request) parseObject(rest string) {
	first, after, _ := strings.Cut(rest, "/")
	if first == "namespaces" {
		namespace, deeper, more := strings.Cut(after, "/")
		r.Namespace = namespace
		if next, _, _ := strings.Cut(deeper, "/"); more && next != "status" && next != "finalize" {
			rest = deeper
		}
	}
	var more string
	r.Resource, more, _ = strings.Cut(rest, "/")
	r.Name, more, _ = strings.Cut(more, "/")
	if r.Verb != "proxy" {
		r.Subresource, _, _ = strings.Cut(more, "/")
	}
}

// saysYes reports whether a parameter's value is true for upstream's conversion.
func saysYes(value string) bool { return value != "0" && !strings.EqualFold(value, "false") }

// verbsOf returns a method's verb for resources, empty if it has none, and for other paths: the
// method in lower case. It does not allocate for the usual methods.
func verbsOf(method string) (resource, lower string) {
	switch method {
	case http.MethodGet:
		return "get", "get"
	case http.MethodHead:
		return "get", "head"
	case http.MethodPost:
		return "create", "post"
	case http.MethodPut:
		return "update", "put"
	case http.MethodPatch:
		return "patch", "patch"
	case http.MethodDelete:
		return "delete", "delete"
	}
	return "", strings.ToLower(method)
}

// proxied reports whether a pod, Service or node answers the request, through kube-apiserver.
func (r *Request) proxied() bool { return r.Subresource == "proxy" || r.Verb == "proxy" }

// ofKubelet reports whether a kubelet answers the request, through kube-apiserver, if the latter serves it.
func (r *Request) ofKubelet() bool {
	return slices.Contains([]string{"attach", "exec", "log", "portforward"}, r.Subresource)
}

// longRunning reports whether a request has no time limit: for kube-apiserver's verbs and subresources, its profiler,
// and the subresources that the APIService declares (kubernetes/kubernetes#73421).
func (r *Request) longRunning(declared []string) bool {
	profiles := !r.IsResourceRequest && strings.HasPrefix(r.Path, "/debug/pprof/")
	return profiles || r.Verb == "watch" || r.proxied() || r.ofKubelet() || slices.Contains(declared, r.Subresource)
}

// ForPolicy returns what all rules of the policy look at, for a user. Nil means that nobody knows.
func (r *Request) ForPolicy(u user.Info, userAgent string) policy.Request {
	return policy.Request{
		Verb: r.Verb, IsResource: r.IsResourceRequest, Path: r.Path, APIGroup: r.APIGroup, Resource: r.Resource,
		Subresource: r.Subresource, Namespace: r.Namespace, Name: r.Name, LabelSelector: r.LabelSelector,
		User: u, UserAgent: userAgent,
	}
}

// discoveryTimeout limits requests for /apis/<group>/<version> itself, with any method, at a
// remote: kubectl waits for that document (kubernetes/kubernetes#82172).
const discoveryTimeout = 5 * time.Second

// requestTimeout returns the time limit of a remote request that is not long-running: the smallest of the policy's
// timeout, ?timeout= and, for a path without a resource, discoveryTimeout. Like k8s.io/apiserver's WithRequestDeadline
// it reads ?timeout= as a Go duration: zero and less mean the server's default. Other values are bad requests.
func requestTimeout(rawQuery string, r *Request, limit time.Duration) (time.Duration, error) {
	if !r.IsResourceRequest {
		limit = min(limit, discoveryTimeout)
	}
	if !strings.Contains(rawQuery, "timeout=") {
		return limit, nil // most requests have none, and need no parsing
	}
	value, _ := param(rawQuery, "timeout")
	asked, err := time.ParseDuration(cmp.Or(value, "0"))
	if err != nil {
		return 0, apierrors.NewBadRequest("invalid timeout specified in the request URL")
	}
	return min(limit, cmp.Or(max(asked, 0), limit)), nil
}
