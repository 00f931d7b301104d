package discovery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Config is what New needs: Table and Fetch, and FetchLocal unless there is no local apiserver.
type Config struct {
	// Table returns the table in force. Required.
	Table func() *registry.Table
	// Fetch sends a request to a remote entry's backend, under an identity that may read discovery. Required.
	Fetch func(ctx context.Context, e *registry.Entry, r *http.Request) (*http.Response, error)
	// FetchLocal sends a request to the local apiserver, likewise. Nil: there is none.
	FetchLocal func(ctx context.Context, r *http.Request) (*http.Response, error)
	// FetchOwn asks this process for what it serves itself: apiregistration.k8s.io with the dir: registry, whatever the local apiserver says of that group. It is asked
	// once. Nil: nothing.
	FetchOwn func(ctx context.Context, r *http.Request) (*http.Response, error)
	// StaleAfter is for how long what a failing backend said last stays Current. Zero: for ever, while the APIService names the same Service.
	StaleAfter time.Duration
	// Every is the time between questions to a backend that answers. Zero: 50 s, and so within a minute with its jitter.
	Every time.Duration
	// Logger is for what goes wrong. Nil discards.
	Logger *slog.Logger
	// Metrics is where fairlead_discovery_* and aggregator_discovery_aggregation_count_total are registered. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Discovery holds the merged documents. It is an http.Handler, safe for concurrent use; until Run has read the local apiserver's documents once it answers 503.
type Discovery struct {
	cfg     Config
	log     *slog.Logger
	codecs  *codecs
	metrics *metrics
	set     *documents.Set[*source]
	local   local
	own     map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery // written once, by Run
	changed chan struct{}                                               // holds one token: something to merge anew

	view         atomic.Pointer[view]
	root, legacy negotiator

	// What follows belongs to Run's goroutine.
	known    map[string]remembered
	departed map[schema.GroupVersion]bool
	last     *registry.Table
	began    time.Time
}

// remembered is what was last known of an APIService, and of which Service: another CA or TLS name is the same backend still.
type remembered struct {
	namespace, service string
	port               int32
	version            *version
}

// view is all documents of one moment.
type view struct {
	groups, legacy *document // /apis in both kinds
	core, versions *document // /api in both kinds. Nil: there is no local apiserver.
	group          sync.Map  // :: group → *groupDocument, made when first asked for
	rows           []row
}

// New makes a Discovery.
func New(cfg Config) (*Discovery, error) {
	if cfg.Table == nil || cfg.Fetch == nil {
		return nil, errors.New("making discovery: Table and Fetch are required")
	}
	d := &Discovery{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{}, 1), departed: make(map[schema.GroupVersion]bool)}
	d.local.poke = make(chan struct{}, 1)
	var err error
	if d.codecs, err = newCodecs(); err != nil {
		return nil, err
	}
	supported, _ := negotiation.MediaTypesForSerializer(d.codecs.legacy)
	d.root = negotiator{codecs: d.codecs, supported: supported, aggregates: true}
	d.legacy = negotiator{codecs: d.codecs, supported: supported}
	d.set = documents.NewSet(documents.Config[*source]{New: d.newSource, Ask: d.ask, Every: cfg.Every})
	d.last = cfg.Table()
	if d.metrics, err = newMetrics(d.Status, cfg.Metrics); err != nil {
		return nil, err
	}
	return d, registerSizes(d, cfg.Metrics)
}

// touch says that there is something to merge anew.
func (d *Discovery) touch() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// newSource makes the source of a backend that has appeared, with what was known of it under other trust.
func (d *Discovery) newSource(entries []*registry.Entry) *source {
	s, first := &source{}, &state{versions: make(map[schema.GroupVersion]*version)}
	for _, e := range entries {
		if k, ok := d.known[e.Name]; ok && k.namespace == e.Backend.Namespace && k.service == e.Backend.Service && k.port == e.Backend.Port {
			first.versions[e.GroupVersion] = k.version
		}
	}
	s.state.Store(first)
	return s
}

const (
	// settling bounds how long the first documents wait for backends that have not answered yet: at start all are new, and a document that calls them Stale for a
	// moment would fail every namespace deletion of that moment.
	settling = 2 * time.Second
	// restFactor is how much longer than merging Run rests, and mostRest its bound: a storm of changes costs a fifth of a core and a change is seen in a quarter of a second.
	restFactor = 4
	mostRest   = 200 * time.Millisecond
)

// Run follows the table, the local apiserver and the backends until ctx ends.
func (d *Discovery) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer func() { cancel(); following.Wait(); d.set.Wait() }()
	if d.cfg.FetchOwn != nil {
		if err := d.askOwn(ctx); err != nil {
			return err
		}
	}
	if d.cfg.FetchLocal != nil {
		following.Go(func() { d.followLocal(ctx) })
	} else {
		d.local.state.Store(&localState{confirmed: time.Now(), groups: d.own})
	}
	d.began = time.Now()
	for {
		t := d.cfg.Table()
		begun := time.Now()
		d.follow(ctx, t)
		again := d.publish(t)
		if err := rest(ctx, min(restFactor*time.Since(begun), mostRest)); err != nil {
			return err
		}
		timer := wakeAt(again)
		select {
		case <-t.Superseded():
		case <-d.changed:
		case <-timer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wakeAt returns a channel that delivers at a time. Zero: never.
func wakeAt(at time.Time) <-chan time.Time {
	if at.IsZero() {
		return nil
	}
	return time.After(time.Until(at))
}

func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow brings the goroutines in step with a table.
func (d *Discovery) follow(ctx context.Context, t *registry.Table) {
	if t == d.last && d.view.Load() != nil {
		return
	}
	d.set.Update(ctx, t)
	if d.compare(d.last, t) {
		d.local.wake()
	}
	d.last = t
}

// compare notes which remote group-versions are gone, and reports whether the local apiserver may have something new to say.
func (d *Discovery) compare(old, t *registry.Table) (localChanged bool) {
	for _, e := range old.Entries() {
		now := t.Entry(e.GroupVersion)
		if now == nil && !e.Local() {
			d.departed[e.GroupVersion] = true
		}
		if (now == nil || now.Local()) != e.Local() || now == nil {
			localChanged = true
		}
	}
	for _, e := range t.Entries() {
		delete(d.departed, e.GroupVersion)
		if old.Entry(e.GroupVersion) == nil {
			localChanged = true
		}
	}
	return localChanged
}

// publish merges and renders what is known now. It returns when to do so again without being asked; zero: never.
func (d *Discovery) publish(t *registry.Table) time.Time {
	l := d.local.state.Load()
	if !t.Complete() || !l.complete() && d.cfg.FetchLocal != nil {
		return time.Time{}
	}
	sources, settled := d.gather()
	if until := d.began.Add(settling); !settled && d.view.Load() == nil && time.Now().Before(until) {
		return until
	}
	for gv := range d.departed {
		if l.groups[gv] == nil {
			delete(d.departed, gv)
		}
	}
	m := &merge{table: t, local: l.groups, sources: sources, departed: d.departed, staleAfter: d.cfg.StaleAfter, now: time.Now()}
	d.view.Store(d.render(m, l, d.view.Load()))
	return m.becomesStale
}

// gather collects the sources of all remotes, by APIService, and reports whether each backend that can be asked has been.
func (d *Discovery) gather() (map[string]*source, bool) {
	sources, known, settled := make(map[string]*source), make(map[string]remembered), true
	d.set.Each(func(s *source, entries []*registry.Entry) {
		st := s.state.Load()
		for _, e := range entries {
			sources[e.Name] = s
			if v := st.versions[e.GroupVersion]; v != nil {
				known[e.Name] = remembered{e.Backend.Namespace, e.Backend.Service, e.Backend.Port, v}
			}
			settled = settled && (st.tried || !documents.Askable(e) || e.GroupVersion.Group == "")
		}
	})
	d.known = known
	return sources, settled
}
