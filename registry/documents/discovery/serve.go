package discovery

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/discovery"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// render makes the documents. It takes unchanged ones from old, which may be nil.
func (d *Discovery) render(m *merge, l *localState, old *view) *view {
	t, next := m.table, new(*cmp.Or(old, &view{}))
	parts := m.parts()
	if next.groups == nil || !slices.EqualFunc(next.parts, parts, part.same) {
		next.groups = d.aggregated(nil, func() *apidiscoveryv2.APIGroupDiscoveryList { return listOfParts(parts) })
		next.lists = make(map[string]*document)
		for _, p := range parts {
			if len(p.from) > 1 && slices.ContainsFunc(p.from, served.current) {
				write := func(w http.ResponseWriter, r *http.Request) { d.codecs.writeLegacy(w, r, p.resourceList()) }
				next.lists[p.group+"/"+p.doc.Version] = &document{cache: private, write: write}
			}
		}
	}
	if next.legacy == nil || !sameList(next.of, t) {
		write := func(w http.ResponseWriter, r *http.Request) { d.codecs.writeLegacy(w, r, groupList(t)) }
		next.legacy = &document{cache: private, write: write}
	}
	next.of, next.parts = t, parts
	if l.core != nil && (next.core == nil || next.core.of != l.core) {
		next.core = d.aggregated(l.core, func() *apidiscoveryv2.APIGroupDiscoveryList { return l.core })
	}
	if l.versions != nil && (next.versions == nil || next.versions.of != l.versions) {
		at := addresses(l.versions.ServerAddressByClientCIDRs) // for the sake of Kubernetes 1.1 it has no apiVersion
		h := apidiscovery.NewLegacyRootAPIHandler(at, d.codecs.legacy, "/api")
		next.versions = &document{cache: private, of: l.versions, write: h.ServeHTTP}
	}
	return next
}

// aggregated makes a document of a list. Its ETag is the hash of the JSON without its kind, as in kube-apiserver.
func (d *Discovery) aggregated(of any, list func() *apidiscoveryv2.APIGroupDiscoveryList) *document {
	d.aggregations.Inc()
	return &document{
		cache: public, of: of, params: aggregatedParams,
		write: func(w http.ResponseWriter, r *http.Request) { d.codecs.writeAggregated(w, r, list()) },
		hash: func() string {
			text, _ := json.Marshal(list()) // it cannot fail
			return negotiate.Hash(text)
		},
	}
}

// sameList reports whether two tables make the same legacy list.
func sameList(a, b *registry.Table) bool {
	same := func(x, y *registry.Entry) bool {
		return x == y || x.GroupVersion == y.GroupVersion && (x.Hidden == "") == (y.Hidden == "")
	}
	sameGroup := func(x, y *registry.Group) bool {
		return x == y || x.Name == y.Name && slices.EqualFunc(x.Entries, y.Entries, same)
	}
	return slices.EqualFunc(a.Entries(), b.Entries(), same) && slices.EqualFunc(a.Groups(), b.Groups(), sameGroup)
}

// Ready returns why the documents cannot be served yet. Nil means that they can.
func (d *Discovery) Ready() error {
	if d.view.Load() == nil {
		return d.NotReady()
	}
	return nil
}

// ServeHTTP serves /api, /apis, /apis/<group>, where several servers have a group-version also
// /apis/<group>/<version>, and the same with a slash. Any other path is not found.
func (d *Discovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs := d.view.Load()
	if docs == nil {
		d.writeError(w, r, d.NotReady())
		return
	}
	switch path := r.URL.Path; path {
	case "/apis":
		d.serve(w, r, d.choose, docs.groups, docs.legacy)
	case "/apis/":
		d.serve(w, r, d.codecs.legacyChoice, nil, docs.legacy)
	case "/api", "/api/":
		d.serveCore(w, r, docs)
	default:
		doc, err := d.below(docs, path)
		if err != nil {
			d.writeError(w, r, err)
			return
		}
		d.serve(w, r, d.codecs.legacyChoice, nil, doc)
	}
}

func (d *Discovery) below(docs *view, path string) (*document, error) {
	group, version, versioned := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(path, "/apis/"), "/"), "/")
	gv, t := schema.GroupVersion{Group: group, Version: version}, d.cfg.Tables.Table()
	g, list := t.Group(group), docs.lists[group+"/"+version]
	switch {
	case group == "" || g == nil || !versioned && legacyGroup(g) == nil || versioned && t.Entry(gv) == nil:
		return nil, errNotFound()
	case versioned && list == nil:
		return nil, d.NotReady() // the table is newer, or no server has answered: 404 would mean that it is gone
	case versioned:
		return list, nil
	}
	write := func(w http.ResponseWriter, r *http.Request) { d.codecs.writeLegacy(w, r, legacyGroup(g)) }
	return &document{cache: private, write: write}, nil
}

// resourceList returns the legacy document of a group-version, which knows no Stale: by it clients
// and the cluster's aggregator see whether the group-version can be used.
func (p part) resourceList() runtime.Object {
	current := *p.doc
	current.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
	_, lists, _ := discovery.SplitGroupsAndResources(*listOfParts([]part{{group: p.group, doc: &current}}))
	list := lists[schema.GroupVersion{Group: p.group, Version: p.doc.Version}]
	list.APIResources = append([]metav1.APIResource{}, list.APIResources...) // not null
	return list
}

// serveCore serves /api. In kube-apiserver go-restful handles it first, which knows only GET, and no type/*.
func (d *Discovery) serveCore(w http.ResponseWriter, r *http.Request, docs *view) {
	switch {
	case docs.versions == nil:
		d.writeError(w, r, errNotFound())
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		d.writeError(w, r, apierrors.NewGenericServerResponse(
			http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false))
	case !produces(r.Header.Get("Accept"), d.codecs.supported):
		message := "406: Not Acceptable\n\nAvailable representations: " + strings.Join(d.codecs.supported, ", ")
		d.writeError(w, r, apierrors.NewGenericServerResponse(
			http.StatusNotAcceptable, "", schema.GroupResource{}, "", message, 0, false))
	default:
		d.serve(w, r, d.choose, docs.core, docs.versions)
	}
}

// serve writes the form of a document that a request asks for, or that there is none, as k8s.io/apiserver does.
func (d *Discovery) serve(w http.ResponseWriter, r *http.Request,
	choose func(accept string) choice, aggregated, legacy *document) {
	c := choose(r.Header.Get("Accept")) // as kube-apiserver: the first line only
	if c.refused {
		d.writeError(w, r, negotiation.NewNotAcceptableError(d.codecs.supported))
		return
	}
	doc := c.of(aggregated, legacy)
	doc.tag() // to compare
	a, form, gzip := doc.made(c, r.URL.RawQuery, r.UserAgent(), r.Header["Accept-Encoding"], r.Header["If-None-Match"])
	if a == nil {
		a = doc.answer(form, gzip)
	}
	a.Write(w, r)
}

func (d *Discovery) writeError(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Cache-Control", "no-cache, private")
	responsewriters.ErrorNegotiated(err, d.codecs.legacy, schema.GroupVersion{Version: "v1"}, w, r)
}

func errNotFound() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource",
	}}
}

// Rendered returns ServeHTTP's response to a GET of a path (as in a URL, without the query), if it
// was rendered before. It takes a fraction of a microsecond, never blocks and allocates nothing.
// Nil means that ServeHTTP must be called. The fields' names are in lower case.
func (d *Discovery) Rendered(path, query string, fields []hpack.HeaderField) *negotiate.Answer {
	docs := d.view.Load()
	asked, ok := read(fields)
	if docs == nil || !ok {
		return nil
	}
	aggregated, legacy := docs.groups, docs.legacy
	switch path {
	case "/apis":
	case "/api":
		if aggregated, legacy = docs.core, docs.versions; legacy == nil || !produces(asked.accept, d.codecs.supported) {
			return nil
		}
	default:
		return nil
	}
	known := d.chosen.Get(asked.accept, time.Unix(1, 0)) // at any time: it stays right, and reading the clock costs 1 %
	if known == nil || known.Value.refused {
		return nil
	}
	doc := known.Value.of(aggregated, legacy)
	a, _, _ := doc.made(known.Value, query, asked.agent, []string{asked.encoding}, []string{asked.match})
	return a
}

// asked are the request fields on which the response depends.
type asked struct{ accept, encoding, match, agent string }

// read finds them in a request head. It reports false if one occurs more than once.
func read(fields []hpack.HeaderField) (a asked, ok bool) {
	for i := range fields {
		var to *string
		switch fields[i].Name {
		case "accept":
			to = &a.accept
		case "accept-encoding":
			to = &a.encoding
		case "if-none-match":
			to = &a.match
		case "user-agent":
			to = &a.agent
		default:
			continue
		}
		if *to != "" {
			return a, false
		}
		*to = fields[i].Value
	}
	return a, true
}
