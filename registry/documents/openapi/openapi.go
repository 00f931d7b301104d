// Package openapi serves /openapi/v3, /openapi/v3/<path> of remote group-versions, and /openapi/v2: the schemas of the
// cluster, merged from the local apiserver's documents and those of the backends.
//
// Each backend contributes only its own group-versions, so a backend with too much, wrong or no content harms no other:
// its last good documents stay, or it is left out, and status and metrics say so. The v3 documents of Local
// group-versions come from the local apiserver itself: registry.Table.Match routes requests for them there.
//
// The concurrency rule: a goroutine per backend (registry/documents) and one for the local apiserver fetch; Run's
// goroutine publishes the results as immutable values. A request fetches nothing. Merging the v2 document takes seconds
// of CPU and hundreds of megabytes. So it is done only on request and after a change, by one request for all that wait,
// and only the compressed bytes are kept.
//
// This package neither authenticates nor authorizes, and routing never waits for it.
package openapi

import (
	"cmp"
	"encoding/json"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

type sources = documents.Sources[state, localState]

// OpenAPI serves the merged documents, concurrently. Until Run has read the local apiserver's, it responds with 503.
type OpenAPI struct {
	*sources
	cfg   documents.Config
	log   *slog.Logger
	build prometheus.Histogram
	own   *version      // what this process serves itself; written by Run before it publishes. Nil means nothing
	heavy chan struct{} // its capacity is how many documents may be decoded at a time

	view    atomic.Pointer[view]
	built   atomic.Pointer[built]
	flights singleflight.Group
	indexed atomic.Pointer[packed] // the last index made
	told    sync.Map               // :: message → the last error's text, see tell
}

// view is the state of one moment. Its documents are made on request.
type view struct {
	table *registry.Table
	local *localState // zero before the first request
	parts []input     // of v2, of what local.spec lacks
	// claimed are the paths that extension servers have in their v3 indexes. converted returns the local apiserver's
	// documents of names, made of v2: those of its paths that were claimed since it has had local.spec.
	claimed, names map[string]bool
	converted      func() map[string]*document
	index          func() *packed // returns the v3 index. Nil means that the local apiserver's is not known yet
	// inputs returns the inputs of v2: as long as nothing has changed, the same pointer as that of the merged document.
	inputs func() *inputs
}

type inputs struct {
	local   *packed // nil means no local apiserver
	remote  []schema.GroupVersion
	sources []input // in order of their best group
}

// input is a part from one document of a backend.
type input struct {
	name string // of the first APIService, for the log
	spec *packed
	own  []schema.GroupVersion
}

// New returns an OpenAPI.
func New(cfg documents.Config) *OpenAPI {
	o := &OpenAPI{
		cfg: cfg, log: cfg.Log(), heavy: make(chan struct{}, maxHeavy),
		build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_openapi_build_seconds", Help: "Time to merge the OpenAPI v2 document.",
			// From 50 ms, which a plain cluster takes, to 25 s, at which clients give up.
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 10),
		}),
	}
	o.sources = documents.New(cfg, documents.Kind[state, localState]{
		Name: "OpenAPI", Every: localEvery,
		Ask: o.ask, AskLocal: o.askLocal, AskOwn: o.askOwn, Join: join, Publish: o.publish,
		Status: func(show func(documents.Freshness)) {
			for _, s := range o.Status() {
				show(s.Freshness)
			}
		},
		Sizes:     o.showSizes,
		SizesHelp: "Size of the merged OpenAPI v2 document, once it was requested, and of the v3 index, uncompressed.",
		Metrics:   []prometheus.Collector{o.build},
	})
	return o
}

// publish makes a view of the current state. Without a change it need not be called again.
func (o *OpenAPI) publish(t *registry.Table) time.Time {
	v := &view{table: t}
	v.local, v.parts = o.together(t)
	o.claim(v, o.view.Load())
	v.index = sync.OnceValue(func() *packed { return o.mergeIndex(v) })
	v.inputs = sync.OnceValue(func() *inputs {
		in := o.collect(v)
		if b := o.built.Load(); b != nil && same(b.of, in) {
			return b.of
		}
		return in
	})
	o.view.Store(v)
	return time.Time{}
}

// remotes yields all servers of a table's remote entries with the states of their backends: of two
// that have the same, the first one's is in the documents.
func (o *OpenAPI) remotes(t *registry.Table) iter.Seq2[*registry.Entry, *source] {
	return func(yield func(*registry.Entry, *source) bool) {
		for _, main := range t.Entries() {
			for _, e := range main.Servers() {
				if s := o.Known(e.Backend); s != nil && !yield(e, s) {
					return
				}
			}
		}
	}
}

// remote returns the v3 document of a group-version that is not Local, or nil.
func (o *OpenAPI) remote(v *view, gv schema.GroupVersion) *document {
	if o.own != nil && gv == apiregistrationv1.SchemeGroupVersion {
		return o.own.v3
	}
	e := v.table.Entry(gv)
	if e == nil || e.Hidden != "" || e.Verdict.Reason == registry.ReasonProtectedGroup {
		return nil
	}
	var of []*document
	for _, server := range e.Servers() {
		if s := o.Known(server.Backend); s != nil && s.Load().versions[gv].v3 != nil {
			of = append(of, s.Load().versions[gv].v3)
		}
	}
	return o.united(gv, of)
}

func (o *OpenAPI) collect(v *view) *inputs {
	in, place := &inputs{local: v.local.spec}, places(v.table)
	for _, p := range v.parts { // of which some may be remotes, as its server's own aggregator has them
		p.own = slices.DeleteFunc(slices.Clone(p.own), func(gv schema.GroupVersion) bool {
			return !ofLocal(v.table, pathOf(gv), false)
		})
		if len(p.own) > 0 {
			in.sources = append(in.sources, p)
		}
	}
	for _, e := range v.table.Entries() {
		if e.Hidden == "" {
			continue
		}
		in.remote = append(in.remote, e.GroupVersion)
		if group := e.GroupVersion.Group; !ofLocal(v.table, "apis/"+group, false) {
			in.remote = append(in.remote, schema.GroupVersion{Group: group})
		}
	}
	parts := make(map[*packed]int) // :: spec → index in sources
	for e, s := range o.remotes(v.table) {
		in.remote = append(in.remote, e.GroupVersion)
		spec := s.Load().versions[e.GroupVersion].v2
		if spec == nil || e.Hidden != "" {
			continue
		}
		at, known := parts[spec]
		if !known {
			at, parts[spec] = len(in.sources), len(in.sources)
			in.sources = append(in.sources, input{name: e.Name, spec: spec})
		}
		in.sources[at].own = append(in.sources[at].own, e.GroupVersion)
	}
	byPlace := func(a, b schema.GroupVersion) int { return cmp.Compare(place[a], place[b]) }
	for _, at := range parts {
		slices.SortFunc(in.sources[at].own, byPlace)
	}
	if o.own != nil {
		own := []schema.GroupVersion{apiregistrationv1.SchemeGroupVersion}
		in.remote = append(in.remote, own...)
		in.sources = append(in.sources, input{name: "this process", spec: o.own.v2, own: own})
	}
	slices.SortFunc(in.remote, byPlace)
	slices.SortStableFunc(in.sources, func(a, b input) int {
		x, y := a.own[0], b.own[0]
		return cmp.Or(cmp.Compare(place[x], place[y]), cmp.Compare(x.String(), y.String())) // strays have no place
	})
	return in
}

// places returns the position of each group-version in aggregated discovery, apiregistration.k8s.io
// first. When two definitions of one name differ, the first keeps the name.
func places(t *registry.Table) map[schema.GroupVersion]int {
	out := make(map[schema.GroupVersion]int, len(t.Entries())+1)
	for _, g := range t.Groups() {
		for _, e := range g.Entries {
			out[e.GroupVersion] = len(out)
		}
	}
	out[apiregistrationv1.SchemeGroupVersion] = -1
	return out
}

// digest returns the hash, none of a document that is not there.
func (p *packed) digest() string { return cmp.Or(p, &packed{}).hash }

func same(a, b *inputs) bool {
	sameSource := func(x, y input) bool { return x.spec == y.spec && slices.Equal(x.own, y.own) }
	return a.local.digest() == b.local.digest() && slices.Equal(a.remote, b.remote) &&
		slices.EqualFunc(a.sources, b.sources, sameSource)
}

// mergeIndex makes the v3 index. A group-version has one owner, as the table says.
func (o *OpenAPI) mergeIndex(v *view) *packed {
	if o.cfg.Local != nil && v.local.index == nil {
		return nil
	}
	index := handler3.OpenAPIV3Discovery{Paths: make(map[string]handler3.OpenAPIV3DiscoveryGroupVersion)}
	for path, item := range v.local.index {
		switch claimed := v.claimed[path]; {
		case !ofLocal(v.table, path, claimed) || o.own != nil && ofOwn(path):
		case claimed:
			index.Paths[path] = itemOf(path, v.local.spec.hash) // of which the document is made
		default:
			index.Paths[path] = item
		}
	}
	add := func(gv schema.GroupVersion) {
		if d := o.remote(v, gv); d != nil {
			index.Paths[pathOf(gv)] = itemOf(pathOf(gv), d.json.hash)
		}
	}
	for e := range o.remotes(v.table) {
		add(e.GroupVersion)
	}
	add(apiregistrationv1.SchemeGroupVersion)
	body, _ := json.Marshal(index) // it cannot fail: it has only strings
	if old := o.indexed.Load(); old != nil && old.hash == negotiate.Hash(body) {
		return old
	}
	p := pack(body)
	o.indexed.Store(p)
	return p
}

// ofLocal reports whether a path of the local apiserver's index is its own: neither a remote group-version, nor a group
// that has only remote ones, nor one of which only an extension server speaks.
func ofLocal(t *registry.Table, path string, claimed bool) bool {
	if gv, ok := groupVersionOf(path); ok {
		e := t.Entry(gv)
		return e == nil && !claimed || e != nil && isLocal(e) || ofOwn(path)
	}
	if group, ok := strings.CutPrefix(path, "apis/"); ok {
		g := t.Group(group) // none has a slash in its name
		return g == nil && !claimed || g != nil && slices.ContainsFunc(g.Entries, isLocal)
	}
	return !claimed || path == "api" || path == "apis" || path == "version"
}

func isLocal(e *registry.Entry) bool { return e.Local() && e.Hidden == "" }

// Status says how current one remote APIService's part of the documents is.
type Status struct {
	documents.Freshness
	// V2 and V3 say whether the APIService has a part in the documents.
	V2 bool `json:"v2"`
	V3 bool `json:"v3"`
	// Foreign are group-versions of other servers that are in the index of this one, ten at most.
	Foreign []string `json:"foreign,omitempty"`
}

// Status returns the status of every server of remote APIServices that are not hidden, sorted by name.
func (o *OpenAPI) Status() []Status {
	var out []Status
	for e, s := range o.remotes(o.cfg.Tables.Table()) {
		if e.Hidden != "" {
			continue
		}
		st := s.Load()
		v := st.versions[e.GroupVersion]
		out = append(out, Status{
			Freshness: documents.Freshness{Confirmed: st.confirmed}.Of(e, st.err),
			V2:        v.v2 != nil, V3: v.v3 != nil, Foreign: st.claims.foreign,
		})
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (o *OpenAPI) showSizes(show func(document string, bytes int)) {
	if b := o.built.Load(); b != nil && b.json != nil {
		show("v2", b.json.size)
	}
	if v := o.view.Load(); v != nil {
		if index := v.index(); index != nil {
			show("v3_index", index.size)
		}
	}
}
