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
	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// render makes the documents. It takes unchanged ones from old, which may be nil.
func (d *Discovery) render(m *merge, l *localState, old *view) *view {
	old = cmp.Or(old, &view{})
	t := m.table
	parts := m.parts()
	next := &view{of: t, parts: parts, groups: old.groups, legacy: old.legacy, core: old.core, versions: old.versions}
	if next.groups == nil || !slices.EqualFunc(old.parts, parts, part.same) {
		next.groups = d.aggregated(nil, func() *apidiscoveryv2.APIGroupDiscoveryList { return listOfParts(parts) })
	}
	if next.legacy == nil || !sameList(old.of, t) {
		next.legacy = &document{cache: private, write: func(w http.ResponseWriter, r *http.Request) { d.codecs.writeLegacy(w, r, groupList(t)) }}
	}
	if l.core != nil && (next.core == nil || next.core.of != l.core) {
		next.core = d.aggregated(l.core, func() *apidiscoveryv2.APIGroupDiscoveryList { return l.core })
	}
	if l.versions != nil && (next.versions == nil || next.versions.of != l.versions) {
		// For the sake of Kubernetes 1.1 it has no apiVersion.
		h := apidiscovery.NewLegacyRootAPIHandler(addresses(l.versions.ServerAddressByClientCIDRs), d.codecs.legacy, "/api")
		next.versions = &document{cache: private, of: l.versions, write: h.ServeHTTP}
	}
	return next
}

// aggregated makes a document of a list. Its ETag is the hash of the JSON without its kind, as in
// kube-apiserver.
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
	same := func(x, y *registry.Entry) bool { return x == y || x.GroupVersion == y.GroupVersion }
	return slices.EqualFunc(a.Entries(), b.Entries(), same) && slices.EqualFunc(a.Groups(), b.Groups(), func(x, y *registry.Group) bool {
		return x == y || x.Name == y.Name && slices.EqualFunc(x.Entries, y.Entries, same)
	})
}

// Ready returns why the documents cannot be served yet. Nil means that they can.
func (d *Discovery) Ready() error {
	if d.view.Load() == nil {
		return d.NotReady()
	}
	return nil
}

// ServeHTTP serves /api, /apis, /apis/<group>, and the same with a slash. Any other path is not
// found.
func (d *Discovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs := d.view.Load()
	if docs == nil {
		d.writeError(w, r, d.NotReady())
		return
	}
	switch path := r.URL.Path; path {
	case "/apis":
		if d.cfg.Whole && slices.ContainsFunc(docs.parts, part.stale) {
			d.writeError(w, r, errNotFound())
			return
		}
		d.serve(w, r, d.root, docs.groups, docs.legacy)
	case "/apis/":
		d.serve(w, r, d.legacy, nil, docs.legacy)
	case "/api", "/api/":
		d.serveCore(w, r, docs)
	default:
		name, below := strings.CutPrefix(path, "/apis/")
		g := d.cfg.Tables.Table().Group(strings.TrimSuffix(name, "/"))
		if !below || g == nil || g.Name == "" {
			d.writeError(w, r, errNotFound())
			return
		}
		d.serve(w, r, d.legacy, nil, &document{cache: private, write: func(w http.ResponseWriter, r *http.Request) {
			d.codecs.writeLegacy(w, r, legacyGroup(g))
		}})
	}
}

// serveCore serves /api. In kube-apiserver go-restful handles it first, which knows only GET, and
// no type/*.
func (d *Discovery) serveCore(w http.ResponseWriter, r *http.Request, docs *view) {
	switch {
	case docs.versions == nil:
		d.writeError(w, r, errNotFound())
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		d.writeError(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false))
	case !produces(r.Header.Get("Accept"), d.root.supported):
		message := "406: Not Acceptable\n\nAvailable representations: " + strings.Join(d.root.supported, ", ")
		d.writeError(w, r, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "", message, 0, false))
	default:
		d.serve(w, r, d.root, docs.core, docs.versions)
	}
}

// serve writes the form of a document that a request asks for.
func (d *Discovery) serve(w http.ResponseWriter, r *http.Request, n *negotiator, aggregated, legacy *document) {
	c := n.choose(r.Header.Get("Accept")) // as kube-apiserver: the first line only
	if c.refused {
		status := responsewriters.ErrorToAPIStatus(negotiation.NewNotAcceptableError(n.supported)) // as k8s.io/apiserver
		responsewriters.WriteRawJSON(int(status.Code), status, w)
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
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource",
	}}
}

// Rendered returns ServeHTTP's response to a GET of a path (as in a URL, without the query), if it
// was rendered before. It takes a fraction of a microsecond, never blocks and allocates nothing.
// Nil means that ServeHTTP must be called. The fields' names are in lower case.
func (d *Discovery) Rendered(path, query string, fields []hpack.HeaderField) *negotiate.Answer {
	docs := d.view.Load()
	if docs == nil {
		return nil
	}
	asked, ok := read(fields)
	if !ok {
		return nil
	}
	aggregated, legacy := docs.groups, docs.legacy
	switch path {
	case "/apis":
	case "/api":
		if aggregated, legacy = docs.core, docs.versions; legacy == nil || !produces(asked.accept, d.root.supported) {
			return nil
		}
	default:
		return nil
	}
	known := d.root.known.Get(asked.accept, time.Time{})
	if known == nil || known.Value.refused {
		return nil
	}
	doc := known.Value.of(aggregated, legacy)
	if doc == nil {
		return nil
	}
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
