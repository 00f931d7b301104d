package registry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// Config is what New needs: Client, Directory, or both.
type Config struct {
	// Client reaches the local apiserver, whose APIServices, Services and EndpointSlices are watched. With Directory it is only asked which
	// group-versions it serves, and they are registered as Local ones. Nil: there is no local apiserver.
	Client *rest.Config
	// Directory holds manifests instead (--registry=dir:PATH): every .yaml, .yml and .json file in it and in the directories below it. Names that
	// begin with a dot are passed over. Empty: APIServices come from Client.
	Directory string
	// Options are the settings of the table. Zero: the documented defaults.
	Options Options
	// Logger receives what goes wrong with the source and how verdicts change. Nil discards.
	Logger *slog.Logger
	// Metrics receives the metrics of the table. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Registry holds the current table. Table, Report and Watch work from the start, but the table stays empty and incomplete until Run has read
// every source once.
type Registry struct {
	source  source
	options *Options
	log     *slog.Logger
	table   atomic.Pointer[Table]
	changes *changes
	metrics *metrics
}

// source feeds a registry with objects.
type source interface {
	// run blocks until ctx ends or the source turns out to be unusable. A source that is merely out of reach keeps trying.
	run(ctx context.Context, to *changes) error
	// watch follows one ConfigMap until ctx ends. The function is called from one goroutine, with nil when there is none.
	watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error
}

// New makes a registry. It reads nothing yet: see Run.
func New(c Config) (*Registry, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	switch {
	case c.Client == nil && c.Directory == "":
		return nil, errors.New("making registry: neither a local apiserver nor a directory to take APIServices from")
	case c.Directory != "":
		// What is in the directory was put there by whoever runs this process, on a machine that need not have a network.
		c.Options.Directory, c.Options.Reach.AllowLoopback, c.Options.AllowURLs = true, true, true
		from, err := newManifests(c)
		if err != nil {
			return nil, err
		}
		return newRegistry(c, from)
	}
	from, err := newCluster(c.Client, c.Logger)
	if err != nil {
		return nil, err
	}
	return newRegistry(c, from)
}

// newRegistry makes a registry over any source.
func newRegistry(c Config, from source) (*Registry, error) {
	o := c.Options
	r := &Registry{
		source:  from,
		options: &o,
		log:     cmp.Or(c.Logger, slog.New(slog.DiscardHandler)),
		changes: newChanges(),
	}
	r.table.Store(Build(Input{Options: r.options}, nil))
	var err error
	if r.metrics, err = newMetrics(r.Table, c.Metrics); err != nil {
		return nil, err
	}
	return r, nil
}

// Table returns the current table. It is never nil.
func (r *Registry) Table() *Table { return r.table.Load() }

// Watch follows the ConfigMap of that name until ctx ends, and returns ctx's error. F is called from one goroutine with every state, the first
// one included, and with nil when there is no such ConfigMap. It must not change what it is given.
func (r *Registry) Watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	return r.source.watch(ctx, namespace, name, f)
}

// Report takes what the prober has found out about an endpoint. It never blocks. What the table says already, and what is about a Backend or
// an address that the table no longer has, is dropped here.
func (r *Registry) Report(report Report) {
	e := r.Table().named(report.Name)
	if e == nil || e.Backend != report.Backend {
		return
	}
	at := slices.IndexFunc(e.Endpoints, func(o Endpoint) bool { return o.Address == report.Address })
	if at < 0 || saysAlready(&e.Endpoints[at], &report) && !r.changes.reported(report) {
		return
	}
	r.changes.report(report)
}

// saysAlready reports whether a report would change nothing. Most do not: a probe that succeeds as the last one did must not cost a table.
func saysAlready(e *Endpoint, r *Report) bool {
	if e.Health != r.Health || e.Slow != r.Slow {
		return false
	}
	return r.Health == Healthy || e.Message == steady(r.Message) && e.Reason == failure(r.Reason)
}

// Run reads the source and keeps the table up to date until ctx ends or the source turns out to be unusable.
func (r *Registry) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.source.run(ctx, r.changes) })
	g.Go(func() error { return r.write(ctx) })
	g.Go(func() error { return r.narrate(ctx) })
	if c, ok := r.source.(*cluster); ok { // a directory tells by itself what its files hide
		s := &shadows{client: c.core.RESTClient(), table: r.Table, to: r.changes, failed: func(err error) {
			r.log.Warn("finding out which definitions are hidden, what was known stays", "err", err)
		}}
		g.Go(func() error { return s.run(ctx) })
	}
	return g.Wait()
}

const (
	// leastPause lets the events of one change come together: a rollout writes slices and a Service within a millisecond or two.
	leastPause = 2 * time.Millisecond
	// mostPause bounds how old the table may be, far below the 0.1 s within which a new APIService must be routable.
	mostPause = 40 * time.Millisecond
)

// write is the one writer.
func (r *Registry) write(ctx context.Context) error {
	o := newObjects()
	pause := leastPause
	var last time.Time
	for {
		var opens <-chan time.Time
		if at := r.Table().opens; !at.IsZero() {
			opens = time.After(time.Until(at))
		}
		select {
		case <-r.changes.signal:
		case <-opens:
		case <-ctx.Done():
			return ctx.Err()
		}
		// In a storm of events, which may be ten thousand verdicts, there are 25 tables a second: building one costs little, but everybody looks at it.
		if pause = min(2*pause, mostPause); time.Since(last) > mostPause {
			pause = leastPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		r.step(o)
		last = time.Now()
	}
}

// step brings what has changed into the table.
func (r *Registry) step(o *objects) {
	b := r.changes.take()
	o.apply(&b)
	if !o.complete() {
		return
	}
	start := time.Now()
	prev := r.Table()
	next := Build(Input{
		APIServices: o.apiServices,
		Services:    o.services,
		Slices:      o.grouped,
		Touched:     o.touched,
		Reports:     slices.Collect(maps.Values(b.reports)),
		Options:     r.options,
		Problems:    o.problems,
		Shadowed:    o.shadowed,
		Complete:    true,
		Now:         start,
	}, prev)
	r.metrics.built(prev, next, time.Since(start))
	if next == prev {
		return
	}
	// Store before close: whoever wakes up must find the new table.
	r.table.Store(next)
	close(prev.superseded)
}

// narrate logs what becomes of the APIServices. It is a reader like any other, because logging is I/O and the writer must do none; it may miss
// a table that is replaced at once.
func (r *Registry) narrate(ctx context.Context) error {
	last := &Table{}
	for t, changes := range latest.Changes(ctx, r.Table, nil) {
		r.compare(last, t, changes)
		last = t
	}
	return ctx.Err()
}

// compare logs the differences between two tables.
func (r *Registry) compare(last, t *Table, changes []latest.Change[*Entry]) {
	if !last.complete && t.complete {
		r.log.Info("registry is complete", "apiservices", len(t.entries))
	}
	for _, c := range changes {
		old, e := c.Old, c.New
		if e == nil {
			continue
		}
		if old == nil {
			old = &Entry{}
		}
		if v := e.Verdict; v.Reason != old.Verdict.Reason && v.Reason != ReasonLocal {
			r.log.Info("availability changed", "apiservice", e.Name, "status", string(v.Status), "reason", v.Reason, "message", v.Message)
		}
		for _, p := range e.Problems {
			if !slices.Contains(old.Problems, p) {
				r.log.Warn("problem with APIService", "apiservice", e.Name, "problem", p)
			}
		}
	}
	for _, p := range t.problems {
		if !slices.Contains(last.problems, p) {
			r.log.Error("problem with manifest, what was valid before stays", "file", p.File, "line", p.Line, "field", p.Field, "problem", p.Message)
		}
	}
}
