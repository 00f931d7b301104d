package openapi

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// OpenAPI holds the merged documents. It is an http.Handler, safe for concurrent use; until Run has read the local apiserver's documents once it answers 503.
type OpenAPI struct {
	cfg     documents.Config
	log     *slog.Logger
	build   prometheus.Histogram
	sources *documents.Sources[state]
	local   atomic.Pointer[localState] // nil: not asked yet
	own     *state                     // what this process serves itself, written once, by Run. Nil: nothing
	heavy   chan struct{}              // has a place for each document that may be decoded at a time

	view    atomic.Pointer[view]
	built   atomic.Pointer[built]
	flights singleflight.Group
}

// view is all that is known at one moment.
type view struct {
	index  *packed                           // v3. Nil: the local apiserver's is not known yet
	remote map[schema.GroupVersion]*document // v3, of the remotes
	inputs *inputs                           // of v2. The same pointer while nothing has changed
	rows   []row
}

// inputs are what the v2 document is made of.
type inputs struct {
	local   *packed // nil: there is no local apiserver
	remote  []schema.GroupVersion
	sources []input // in order of their best group
}

// input is a backend's part.
type input struct {
	name string // of the first APIService, for the log
	spec *packed
	own  []schema.GroupVersion
}

// New makes an OpenAPI.
func New(cfg documents.Config) (*OpenAPI, error) {
	o := &OpenAPI{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), heavy: make(chan struct{}, maxHeavy),
		build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_openapi_build_seconds", Help: "Time to merge the OpenAPI v2 document.",
			// From 50 ms, which a plain cluster takes, to 25 s, at which clients give up.
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 10),
		}),
	}
	var err error
	o.sources, err = documents.New(cfg, documents.Kind[state]{
		Name: "OpenAPI", Ask: o.ask, AskLocal: o.askLocal, Pace: documents.Pace{Every: indexEvery, After: hurries()}, Publish: o.publish,
		Status: o.showStatus, Sizes: o.showSizes,
		SizesHelp: "Size of the merged OpenAPI v2 document, once somebody has asked for it, and of the v3 index, uncompressed.",
		Metrics:   []prometheus.Collector{o.build},
	})
	return o, err
}

// Run follows the table, the local apiserver and the backends until ctx ends.
func (o *OpenAPI) Run(ctx context.Context) error {
	if err := o.askOwn(ctx); err != nil {
		return err
	}
	return o.sources.Run(ctx)
}

// LocalChanged hints that the local apiserver may have something new to say: a CRD has changed. It never blocks.
func (o *OpenAPI) LocalChanged() { o.sources.LocalChanged() }

// publish makes a view of what is known now. It need not be called again unless something happens.
func (o *OpenAPI) publish(t *registry.Table) time.Time {
	v := &view{remote: make(map[schema.GroupVersion]*document)}
	in := &inputs{}
	place := places(t)
	o.sources.Each(func(s *source, entries []*registry.Entry) {
		st := s.Load()
		part := input{name: entries[0].Name, spec: st.spec}
		for _, e := range entries {
			v.rows = append(v.rows, row{e, s})
			in.remote, part.own = append(in.remote, e.GroupVersion), append(part.own, e.GroupVersion)
			if d := st.documents[e.GroupVersion]; d != nil && e.Verdict.Reason != registry.ReasonProtectedGroup {
				v.remote[e.GroupVersion] = d
			}
		}
		if st.spec != nil {
			slices.SortFunc(part.own, func(a, b schema.GroupVersion) int { return cmp.Compare(place[a], place[b]) })
			in.sources = append(in.sources, part)
		}
	})
	if o.own != nil {
		gv := ownGroupVersion()
		maps.Copy(v.remote, o.own.documents)
		in.remote = append(in.remote, gv)
		in.sources = append(in.sources, input{name: "this process", spec: o.own.spec, own: []schema.GroupVersion{gv}})
	}
	slices.SortFunc(v.rows, func(a, b row) int { return strings.Compare(a.entry.Name, b.entry.Name) })
	slices.SortFunc(in.remote, func(a, b schema.GroupVersion) int { return cmp.Compare(place[a], place[b]) })
	slices.SortFunc(in.sources, func(a, b input) int { return cmp.Compare(place[a.own[0]], place[b.own[0]]) })
	l := o.local.Load()
	if l != nil {
		in.local = l.spec
	}
	if old := o.view.Load(); old != nil && same(old.inputs, in) {
		in = old.inputs
	}
	v.inputs = in
	if l != nil && l.index != nil || o.cfg.FetchLocal == nil {
		v.index = o.mergeIndex(t, l, v.remote)
	}
	o.view.Store(v)
	return time.Time{}
}

// places is where each group-version stands in the order of aggregated discovery, apiregistration.k8s.io first: whose definition keeps its name when two clash.
func places(t *registry.Table) map[schema.GroupVersion]int {
	out := make(map[schema.GroupVersion]int, len(t.Entries())+1)
	for _, g := range t.Groups() {
		for _, e := range g.Entries {
			out[e.GroupVersion] = len(out)
		}
	}
	out[ownGroupVersion()] = -1
	return out
}

// same reports whether two sets of inputs make the same document.
func same(a, b *inputs) bool {
	return a.local == b.local && slices.Equal(a.remote, b.remote) && slices.EqualFunc(a.sources, b.sources, func(x, y input) bool {
		return x.spec == y.spec && slices.Equal(x.own, y.own)
	})
}

// mergeIndex makes the v3 index. A group-version has one owner, whom the table names.
func (o *OpenAPI) mergeIndex(t *registry.Table, l *localState, remote map[schema.GroupVersion]*document) *packed {
	index := handler3.OpenAPIV3Discovery{Paths: make(map[string]handler3.OpenAPIV3DiscoveryGroupVersion)}
	if l != nil {
		for path, item := range l.index {
			if ofLocal(t, path) && (o.own == nil || !ofOwn(path)) {
				index.Paths[path] = item
			}
		}
	}
	for gv, d := range remote {
		index.Paths[pathOf(gv)] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: relativeURL(gv, d.json.hash)}
	}
	body, err := json.Marshal(index)
	if err != nil {
		o.log.Error("encoding the index of OpenAPI", "err", err) // it holds strings
	}
	if old := o.view.Load(); old != nil && old.index != nil && old.index.hash == negotiate.Hash(body) {
		return old.index
	}
	return pack(body)
}

// ofLocal reports whether a path of the local apiserver's index is its own: neither a remote group-version, nor a group that has no other.
func ofLocal(t *registry.Table, path string) bool {
	parts := strings.Split(path, "/")
	switch {
	case parts[0] == "apis" && len(parts) == 3:
		e := t.Entry(schema.GroupVersion{Group: parts[1], Version: parts[2]})
		return e == nil || e.Local()
	case parts[0] == "apis" && len(parts) == 2:
		g := t.Group(parts[1])
		return g == nil || slices.ContainsFunc(g.Entries, (*registry.Entry).Local)
	case parts[0] == "api" && len(parts) == 2:
		e := t.Entry(schema.GroupVersion{Version: parts[1]})
		return e == nil || e.Local()
	}
	return true
}
