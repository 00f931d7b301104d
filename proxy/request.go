package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Request is what a method and a path ask for in Kubernetes' terms. Its fields are those of k8s.io/apiserver's RequestInfo, and so are their
// values (a fuzz test holds it to that); its strings are parts of the path.
type Request struct {
	// Resource requests name an API resource; others are asked for by path.
	IsResource bool
	// Verb is Kubernetes' verb of a resource request, the lower-case method of another.
	Verb string
	// Group and Version are empty for a request that is not for a resource; Group is empty for core too.
	Group, Version string
	// Namespace, Resource, Subresource and Name are empty where the path has none.
	Namespace, Resource, Subresource, Name string
	// Path is the decoded path.
	Path string
	// FieldSelector and LabelSelector are set for list, watch and deletecollection only.
	FieldSelector, LabelSelector string
}

// parseRequest reads a head. It finds what upstream's RequestInfoFactory.NewRequestInfo does, step by step, but
// parses selectors only where the outcome depends on it: upstream takes half a second for 240 KB of them.
//
//fairlead:loop
func parseRequest(method, path, rawQuery string) Request {
	if strings.IndexByte(path, '%') >= 0 {
		if p, err := url.PathUnescape(path); err == nil {
			path = p
		}
	}
	r, viaPath := parsePath(method, path)
	if !r.IsResource || viaPath || r.Name != "" {
		return r
	}
	if plainQuery(rawQuery) {
		r.refineVerb(watchParam(rawQuery))
		return r
	}
	watch, ok := param(rawQuery, "watch")
	r.refineVerb(ok && saysYes(watch))
	if len(rawQuery) > maxSelectors {
		return r
	}
	switch r.Verb {
	case "list", "watch", "deletecollection":
		r.FieldSelector, _ = param(rawQuery, "fieldSelector")
		r.LabelSelector, _ = param(rawQuery, "labelSelector")
	}
	if r.Verb != "deletecollection" {
		r.Name = namedBy(r.FieldSelector, rawQuery)
	}
	return r
}

// param returns the first value of a query's parameter that can be decoded, as url.ParseQuery finds it, which
// makes a map of everything.
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

// maxSelectors bounds the query whose selectors are looked at, because parsing them costs some 100 µs a
// kilobyte and the authorizer parses them again. In a longer one they are left out, which asks the authorizer
// for more: for the whole collection. A name takes 253 bytes, and RBAC looks at no other selector.
const maxSelectors = 8 << 10

// plainQuery reports whether a query's only interesting part can be its watch parameter.
func plainQuery(q string) bool {
	return q == "" || !strings.ContainsAny(q, "%+;") && !strings.Contains(q, "Selector")
}

// namedBy returns the name that a field selector asks for alone. Upstream takes it only from list options that
// can be read as a whole; it would log others, with the query, which may hold secrets.
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

// info is the request in the words of k8s.io/apiserver's filters, which look at no more than this.
func (r *Request) info() *request.RequestInfo {
	return &request.RequestInfo{
		IsResourceRequest: r.IsResource, Path: r.Path, Verb: r.Verb, APIGroup: r.Group, APIVersion: r.Version, Namespace: r.Namespace,
		Resource: r.Resource, Subresource: r.Subresource, Name: r.Name, FieldSelector: r.FieldSelector, LabelSelector: r.LabelSelector,
	}
}

// segment cuts the first segment off a path without leading slash.
func segment(path string) (first, rest string) {
	first, rest, _ = strings.Cut(path, "/")
	return first, rest
}

// parsePath reads a decoded path. It reports whether the verb is part of it (/api/v1/watch/pods).
func parsePath(method, path string) (r Request, viaPath bool) {
	nonResource := Request{Verb: lowerMethod(method), Path: path}
	prefix, rest := segment(strings.Trim(path, "/"))
	r = Request{IsResource: true, Path: path}
	switch prefix {
	case "api":
	case "apis":
		r.Group, rest = segment(rest)
	default:
		return nonResource, false
	}
	r.Version, rest = segment(rest)
	if rest == "" { // fewer than four segments (three for core): the document of a group-version, or less
		return nonResource, false
	}
	first, after := segment(rest)
	viaPath = first == "watch" || first == "proxy"
	if viaPath {
		if !strings.Contains(rest, "/") {
			return nonResource, false
		}
		r.Verb, rest = first, after
	} else {
		r.Verb = resourceVerb(method)
	}
	r.parseObject(rest)
	return r, viaPath
}

// parseObject reads [namespaces/<ns>/]<resource>[/<name>[/<subresource>[/…]]].
func (r *Request) parseObject(rest string) {
	first, after := segment(rest)
	if first == "namespaces" && strings.Contains(rest, "/") {
		var deeper string
		r.Namespace, deeper = segment(after)
		if strings.Contains(after, "/") {
			if next, _ := segment(deeper); next != "status" && next != "finalize" {
				rest = deeper
			}
		}
	}
	var more string
	r.Resource, more = segment(rest)
	r.Name, more = segment(more)
	if r.Verb != "proxy" {
		r.Subresource, _ = segment(more)
	}
}

// refineVerb turns a get without a name into a list or watch, and a delete without a name into a deletecollection.
func (r *Request) refineVerb(watch bool) {
	if r.Name != "" {
		return
	}
	switch r.Verb {
	case "get":
		r.Verb = "list"
		if watch {
			r.Verb = "watch"
		}
	case "delete":
		r.Verb = "deletecollection"
	}
}

// watchParam reads the first watch parameter of a plain query as upstream's conversion does: present is true, unless it says false or 0.
func watchParam(q string) bool {
	for q != "" {
		var pair string
		pair, q, _ = strings.Cut(q, "&")
		key, value, _ := strings.Cut(pair, "=")
		if key == "watch" {
			return saysYes(value)
		}
	}
	return false
}

func saysYes(value string) bool { return value != "0" && !strings.EqualFold(value, "false") }

func resourceVerb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// lowerMethod is strings.ToLower without its allocation for the usual methods.
func lowerMethod(method string) string {
	switch method {
	case http.MethodGet:
		return "get"
	case http.MethodPost:
		return "post"
	case http.MethodPut:
		return "put"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	case http.MethodHead:
		return "head"
	case http.MethodOptions:
		return "options"
	}
	return strings.ToLower(method)
}

// longRunning reports whether a request may last as long as it likes: kube-apiserver's verbs and subresources, its profiler, and the subresources
// that the APIService declares (kubernetes/kubernetes#73421: there, an aggregated server cannot).
func (r *Request) longRunning(declared []string) bool {
	switch r.Verb {
	case "watch", "proxy":
		return true
	}
	if !r.IsResource {
		return strings.HasPrefix(r.Path, "/debug/pprof/")
	}
	switch r.Subresource {
	case "":
		return false
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return slices.Contains(declared, r.Subresource)
}
