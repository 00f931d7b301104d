// Package discovery serves /api, /apis, /apis/, /apis/<group>, and of several servers also
// /apis/<group>/<version>: the group-versions and resources of the cluster, merged from the table,
// the local apiserver's own document and those of the backends, in its forms and order.
//
// Sources: a Local group-version comes from the local apiserver's document, but not a version whose table entry is
// remote (its own aggregator lists those, too). A remote one comes only from its backend, which has its own goroutine
// (registry/documents) and is believed only about its own group-versions. A backend that fails keeps its last known
// resources as Current: client-go ignores Stale ones, which makes namespaces hang. In this it deliberately differs from
// kube-aggregator. It is safe: where a deletable resource cannot be listed, deletion waits. A live one is believed.
//
// The concurrency rule: one goroutine, Run's, merges and renders. Documents are immutable behind one atomic pointer, so
// a request waits for nothing. A rarely used form is rendered from the document once, on first request.
//
// This package fetches nothing while serving a request, and neither authenticates nor authorizes.
package discovery

import (
	"cmp"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Config configures a Discovery.
type Config struct {
	documents.Config
	// StaleAfter is how long a failing backend's last response stays Current. Zero: while the Service is the same.
	StaleAfter time.Duration
	// MaxBody bounds a body of a backend, and half of what all large group-versions take together. Zero means 80 MiB,
	// or a 24th of Go's memory limit, 8 MiB at least: one of 64 MiB takes some ten times that to decode and render.
	MaxBody int64
}

type sources = documents.Sources[state, localState]

// Discovery serves the merged documents, concurrently. Until Run has read the local apiserver's, it responds with 503.
type Discovery struct {
	*sources
	cfg          Config
	codecs       *codecs
	aggregations prometheus.Counter
	turn         chan struct{} // of large documents
	own          versions      // written by Run, before it publishes

	view   atomic.Pointer[view]
	chosen *memo.Cache[string, choice] // by Accept

	// The fields below belong to Run's goroutine.
	told  map[string]string // :: server → its conflicts
	began time.Time         // when a local apiserver had been read, so that only others and backends were missing
}

// view has all documents of one moment.
type view struct {
	of             *registry.Table
	parts          []part               // of groups
	groups, legacy *document            // /apis in both kinds
	core, versions *document            // /api in both kinds. Nil means no local apiserver.
	lists          map[string]*document // /apis/<group>/<version> of several servers, rendered once: it may be large
}

// New returns a Discovery.
func New(cfg Config) *Discovery {
	cfg.MaxBody = cmp.Or(cfg.MaxBody, max(8<<20, min(80<<20, debug.SetMemoryLimit(-1)/24)))
	bounds := memo.Config{Entries: maxAccepts, Bytes: maxAccepts * maxAccept, Largest: maxAccept}
	d := &Discovery{
		cfg: cfg, codecs: newCodecs(), turn: make(chan struct{}, 1), told: make(map[string]string),
		aggregations: metric.Count("aggregator_discovery_aggregation_count_total",
			"Counter of number of times discovery was aggregated"),
		chosen: memo.New[string, choice](bounds),
	}
	d.sources = documents.New(cfg.Config, documents.Kind[state, localState]{
		Name: "discovery", Every: localEvery, Verdicts: cfg.StaleAfter > 0,
		Ask: d.ask, AskLocal: d.askLocal, AskOwn: d.askOwn, Join: join, Publish: d.publish,
		Status: func(show func(documents.Freshness)) {
			for _, s := range d.Status() {
				show(s.Freshness)
			}
		},
		Sizes:     d.showSizes,
		SizesHelp: "Size of the merged discovery documents as JSON, uncompressed.",
		Metrics:   []prometheus.Collector{d.aggregations},
	})
	return d
}

// publish merges and renders the current state. It returns when to do so again even without a change. Zero means never.
func (d *Discovery) publish(t *registry.Table) time.Time {
	m := &merge{
		table: t, sources: d.Known, departed: d.Departed, lost: make(map[schema.GroupVersion]bool),
		staleAfter: d.cfg.StaleAfter, now: time.Now(),
	}
	if !t.Complete() { // it may lack what only an unread apiserver has, and no request is served
		return time.Time{}
	}
	l, again := d.together(m)
	if l == nil {
		return again
	}
	// settling bounds how long the first documents wait for backends that have not answered: at start all backends are
	// new, and a document that has them Stale for a moment would fail every namespace deletion of that moment.
	const settling = 2 * time.Second
	d.began = cmp.Or(d.began, m.now)
	if until := d.began.Add(settling); d.view.Load() == nil && time.Now().Before(until) && (m.silent || !d.settled(t)) {
		return until
	}
	maps.DeleteFunc(d.Departed, func(gv schema.GroupVersion, _ bool) bool { return l.groups[gv] == nil })
	m.local = l.groups
	next := d.render(m, l, d.view.Load())
	d.tell(next.parts)
	d.view.Store(next)
	return m.becomesStale
}

func (d *Discovery) tell(parts []part) {
	for _, p := range parts {
		for _, s := range p.from[1:] { // nobody was before the first
			if now := strings.Join(s.conflicts, ", "); now != d.told[s.name] {
				d.told[s.name] = now
				d.cfg.Log().Warn("resources of backend of another kind, scope or verbs than those of another server, "+
					"which are listed, are now", "apiservice", s.name, "resources", now)
			}
		}
	}
}

// settled reports whether each backend that can be asked has been asked.
func (d *Discovery) settled(t *registry.Table) bool {
	return !slices.ContainsFunc(t.Servers(), func(e *registry.Entry) bool {
		s := d.Known(e.Backend)
		return s != nil && !s.Load().tried && documents.Askable(e) && e.GroupVersion.Group != ""
	})
}

// Status says how current one remote APIService's part of the documents is.
type Status struct {
	documents.Freshness
	Stale     bool `json:"stale"`     // the resources are listed as Stale, so that clients ignore them
	Resources int  `json:"resources"` // how many resources are listed
	// Conflicts are its resources of another kind, scope or verbs than another server's, which are listed; ten at most.
	Conflicts []string `json:"conflicts,omitempty"`
}

// Status returns the status of every server of remote APIServices, sorted by name.
func (d *Discovery) Status() []Status {
	var out []Status
	servers := make(map[string]*registry.Entry)
	for _, e := range d.cfg.Tables.Table().Servers() {
		servers[e.Name] = e
	}
	for _, p := range cmp.Or(d.view.Load(), &view{}).parts {
		for _, s := range p.from {
			e := servers[s.name]
			if s.of == nil || e == nil {
				continue
			}
			v := s.of.Load().versions[e.GroupVersion] // a confirmation does not render the document again
			out = append(out, Status{
				Freshness: documents.Freshness{Confirmed: v.confirmed}.Of(e, v.err),
				Stale:     !s.current() && !served{doc: p.doc}.current(), // of several servers: of all together
				Resources: len(s.doc.Resources), Conflicts: s.conflicts,
			})
		}
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (d *Discovery) showSizes(show func(document string, bytes int)) {
	docs := cmp.Or(d.view.Load(), &view{})
	for name, doc := range map[string]*document{
		"apis": docs.legacy, "apis_aggregated": docs.groups,
		"api": docs.versions, "api_aggregated": docs.core,
	} {
		if doc != nil {
			show(name, len(doc.form(choice{}).body))
		}
	}
}
