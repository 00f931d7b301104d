package openapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Config is what New needs: Table and Fetch, and FetchLocal unless there is no local apiserver.
type Config struct {
	// Table returns the table in force. Required.
	Table func() *registry.Table
	// Fetch sends a request to a remote entry's backend, under an identity that may read OpenAPI. Required.
	Fetch func(ctx context.Context, e *registry.Entry, r *http.Request) (*http.Response, error)
	// FetchLocal sends a request to the local apiserver, likewise. Nil: there is none.
	FetchLocal func(ctx context.Context, r *http.Request) (*http.Response, error)
	// FetchOwn asks this process for what it serves itself: apiregistration.k8s.io with the dir: registry, whatever the local apiserver says of that group. It is asked
	// once. Nil: nothing.
	FetchOwn func(ctx context.Context, r *http.Request) (*http.Response, error)
	// Every is the time between questions to a backend that answers. Zero: 50 s, and so within a minute with its jitter.
	Every time.Duration
	// Logger is for what goes wrong. Nil discards.
	Logger *slog.Logger
	// Metrics is where fairlead_openapi_* are registered. Nil: unregistered.
	Metrics prometheus.Registerer
}

// OpenAPI holds the merged documents. It is an http.Handler, safe for concurrent use; until Run has read the local apiserver's documents once it answers 503.
type OpenAPI struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	set     *documents.Set[*source]
	local   local
	own     *state        // what this process serves itself, written once, by Run. Nil: nothing
	changed chan struct{} // holds one token: something to publish
	heavy   chan struct{} // has a place for each document that may be decoded at a time

	view    atomic.Pointer[view]
	built   atomic.Pointer[built]
	flights singleflight.Group
	last    *registry.Table // of Run's goroutine
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
func New(cfg Config) (*OpenAPI, error) {
	if cfg.Table == nil || cfg.Fetch == nil {
		return nil, errors.New("making OpenAPI: Table and Fetch are required")
	}
	o := &OpenAPI{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{}, 1), heavy: make(chan struct{}, maxHeavy), last: cfg.Table()}
	o.local.poke = make(chan struct{}, 1)
	o.set = documents.NewSet(documents.Config[*source]{New: o.newSource, Ask: o.ask, Every: cfg.Every})
	var err error
	if o.metrics, err = newMetrics(o.Status, cfg.Metrics); err != nil {
		return nil, err
	}
	return o, registerSizes(o, cfg.Metrics)
}

func (o *OpenAPI) touch() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// newSource makes the source of a backend that has appeared, with what was known of its Service under other trust.
func (o *OpenAPI) newSource(entries []*registry.Entry) *source {
	s, first := &source{}, &state{documents: make(map[schema.GroupVersion]*document)}
	if v := o.view.Load(); v != nil {
		for _, r := range v.rows {
			if b := r.entry.Backend; b.Namespace == entries[0].Backend.Namespace && b.Service == entries[0].Backend.Service && b.Port == entries[0].Backend.Port {
				first = r.source.state.Load()
				break
			}
		}
	}
	s.state.Store(first)
	return s
}

// leastRest is the time between two publications: the hundred events of a start are one.
const leastRest = 20 * time.Millisecond

// Run follows the table, the local apiserver and the backends until ctx ends.
func (o *OpenAPI) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer func() { cancel(); following.Wait(); o.set.Wait() }()
	if o.cfg.FetchOwn != nil {
		if err := o.askOwn(ctx); err != nil {
			return err
		}
	}
	if o.cfg.FetchLocal != nil {
		following.Go(func() { o.followLocal(ctx) })
	}
	for {
		t := o.cfg.Table()
		if t != o.last || o.view.Load() == nil {
			o.set.Update(ctx, t)
			if localChanged(o.last, t) {
				o.local.wake()
			}
			o.last = t
		}
		o.publish(t)
		select {
		case <-time.After(leastRest):
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-t.Superseded():
		case <-o.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// localChanged reports whether the local apiserver may have something new to say.
func localChanged(old, t *registry.Table) bool {
	count := 0
	for _, e := range t.Entries() {
		was := old.Entry(e.GroupVersion)
		if was == nil || was.Local() != e.Local() {
			return true
		}
		count++
	}
	return count != len(old.Entries())
}

// publish makes a view of what is known now.
func (o *OpenAPI) publish(t *registry.Table) {
	v := &view{remote: make(map[schema.GroupVersion]*document)}
	in := &inputs{}
	place := places(t)
	o.set.Each(func(s *source, entries []*registry.Entry) {
		st := s.state.Load()
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
	l := o.local.state.Load()
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
	if old := o.view.Load(); old != nil && old.index != nil && old.index.hash == hashOf(body) {
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
