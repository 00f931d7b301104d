package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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

// requestInfo is upstream's parser, for what the fast path leaves alone. It is never written.
func requestInfo() *request.RequestInfoFactory {
	return &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
}

// parseRequest reads a head. Upstream parses and allocates for every request; nine of ten need neither, because nothing in their path is escaped and
// their query holds no selector. The rest go to upstream's own parser.
func parseRequest(method, path, rawQuery string) Request {
	if strings.IndexByte(path, '%') >= 0 || !plainQuery(rawQuery) {
		return parseSlow(method, path, rawQuery)
	}
	return parsePlain(method, path, rawQuery)
}

// plainQuery reports whether a query's only interesting part can be its watch parameter.
func plainQuery(q string) bool {
	return q == "" || !strings.ContainsAny(q, "%+;") && !strings.Contains(q, "Selector")
}

func parseSlow(method, path, rawQuery string) Request {
	u := &url.URL{Path: path, RawQuery: rawQuery}
	if p, err := url.PathUnescape(path); err == nil {
		u.Path = p
	}
	selectors := url.Values(nil) // those that upstream is not shown. Nil: it is shown all there is
	if q := u.Query(); method == http.MethodGet && !decodes(q) {
		// Upstream would write an error to the log, with the query, which may hold secrets: for anybody, as often as he asks, and under the lock of the frame
		// lane. What it makes of such a query is to look at watch alone, and to take the selectors as they stand.
		selectors, u.RawQuery = q, url.Values{"watch": q["watch"], "labelSelector": {placeholder}}.Encode()
	}
	// Upstream returns what it understood beside the error, and its callers of old use that.
	info, err := requestInfo().NewRequestInfo(&http.Request{Method: method, URL: u})
	if err != nil {
		return Request{Verb: strings.ToLower(method), Path: u.Path}
	}
	r := Request{
		Path: info.Path, IsResource: info.IsResourceRequest, Verb: info.Verb, Namespace: info.Namespace, Resource: info.Resource,
		Subresource: info.Subresource, Name: info.Name, FieldSelector: info.FieldSelector, LabelSelector: info.LabelSelector,
	}
	if r.IsResource {
		r.Group, r.Version = info.APIGroup, info.APIVersion
	}
	if selectors != nil && r.LabelSelector == placeholder {
		r.FieldSelector, r.LabelSelector = selectors.Get("fieldSelector"), selectors.Get("labelSelector")
	}
	return r
}

// placeholder is a label selector that shows whether upstream takes selectors over: it does not where the verb is part of the path.
const placeholder = "placeholder"

// decodes reports whether upstream can read a query as list options.
func decodes(q url.Values) bool {
	var o metainternalversion.ListOptions
	return metainternalversionscheme.ParameterCodec.DecodeParameters(q, metav1.SchemeGroupVersion, &o) == nil
}

// segment cuts the first segment off a path without leading slash.
func segment(path string) (first, rest string) {
	first, rest, _ = strings.Cut(path, "/")
	return first, rest
}

// parsePlain is the fast path. It follows upstream's RequestInfoFactory.NewRequestInfo step by step.
func parsePlain(method, path, rawQuery string) Request {
	nonResource := Request{Verb: lowerMethod(method), Path: path}
	prefix, rest := segment(strings.Trim(path, "/"))
	r := Request{IsResource: true, Path: path}
	switch prefix {
	case "api":
	case "apis":
		r.Group, rest = segment(rest)
	default:
		return nonResource
	}
	r.Version, rest = segment(rest)
	if rest == "" { // fewer than four segments (three for core): the document of a group-version, or less
		return nonResource
	}
	first, after := segment(rest)
	viaPath := first == "watch" || first == "proxy"
	if viaPath {
		if !strings.Contains(rest, "/") {
			return nonResource
		}
		r.Verb, rest = first, after
	} else {
		r.Verb = resourceVerb(method)
	}
	r.parseObject(rest)
	r.refineVerb(rawQuery)
	return r
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
func (r *Request) refineVerb(rawQuery string) {
	if r.Name != "" {
		return
	}
	switch r.Verb {
	case "get":
		r.Verb = "list"
		if watchParam(rawQuery) {
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
			return value != "0" && !strings.EqualFold(value, "false")
		}
	}
	return false
}

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
