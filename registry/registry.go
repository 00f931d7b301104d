// Package registry holds the live, immutable table of APIServices. No other package reads them.
//
//	objects ─► changes ─┬─► Build ─► atomic pointer ─► close(superseded) ─► every reader wakes up by itself
//	probes ──► Report ──┘   one writer, no I/O         of the table before
//
// Everything reachable from a stored *Table is read-only: any goroutine may read it without a lock, for any time.
//
//  1. To look up: [Registry.Table], then [Table.Match] with a request's path, or [Table.Entry].
//  2. To change: write objects where they are from; the prober calls [Registry.Report].
//  3. To follow: for t := range latest.Of(ctx, reg.Table, nil) { … }, and latest.Diff for what has changed.
//
// This package does not dial and does not serve (registry/documents and registry/apiservices do). About a request it
// decides only which entry its path selects.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry/directory"
)

// Config configures New (makeTable in cmd/fairlead). Set APIServices, Client, Directory, or Client and Directory.
type Config struct {
	// APIServices connects to the API that this process serves from etcd. Services then come from Directory, or from
	// Client without one, and Directory's APIServices are added. Nil: they come from Client or Directory.
	APIServices *rest.Config
	// Client connects to the local apiserver. Its APIServices, Services and EndpointSlices are watched. With Directory,
	// it is only asked for its group-versions, which are registered as Local. Nil means no local apiserver.
	Client *rest.Config
	// Cluster adds the APIServices, Services and EndpointSlices of Client whose names Directory and APIServices do not
	// have. These APIServices are Local, even those of extension servers: requests go to the cluster's own aggregator.
	Cluster bool
	// Directory is directory.Config.Path (--registry=dir:PATH). Empty means that APIServices come from Client.
	Directory string
	// Policy is the file or directory of the policy, or configmap:<namespace>/<name>, of which each key is a file.
	Policy string
	// CacheFile stores the last known APIServices of etcd, for a start at which etcd cannot be read. Empty means none.
	CacheFile    string
	Options      Options // the settings of the table. Zero means the documented defaults
	metric.Sinks         // faults of the source, and changes of verdicts
}

// Registry holds the current table. Table, Report and Watch may be called before Run, but the table
// is empty and incomplete until Run has read every source once.
type Registry struct {
	sources *sources
	options *Options
	log     *slog.Logger
	table   atomic.Pointer[Table]
	changes *changes
	build   prometheus.Histogram // how long building a table takes
	policy  *policies
	awaited []kind // kinds to be read in addition to those of every source
}

// New makes a registry. It reads nothing: see Run.
func New(c Config) (*Registry, error) {
	c.Logger = c.Log()
	switch {
	case c.Cluster && c.Client == nil:
		return nil, errors.New("making registry: a cluster's APIServices are to count, and there is no local apiserver")
	case c.APIServices != nil || c.Directory != "":
		c.Options.Directory, c.Options.AllowURLs = true, true
		if c.APIServices == nil && !c.Cluster {
			// The operator writes the directory, perhaps without a network, so it may name loopback; slices may not.
			c.Options.Reach.AllowLoopback = true
		}
	case c.Client == nil:
		return nil, errors.New("making registry: neither a local apiserver nor a directory to take APIServices from")
	}
	from, err := newSources(c)
	if err != nil {
		return nil, err
	}
	r := newRegistry(c, from)
	r.policy, err = newPolicies(r, c.Policy)
	return r, err
}

func newRegistry(c Config, from *sources) *Registry {
	r := &Registry{sources: from, options: &c.Options, log: c.Log(), changes: newChanges()}
	if c.Policy != "" {
		r.awaited = append(r.awaited, kindPolicy)
	}
	if c.Cluster && c.Options.Directory {
		r.awaited = append(r.awaited, kindServed)
	}
	if c.Cluster && c.Directory != "" {
		r.awaited = append(r.awaited, kindFallbackService, kindFallbackSlice)
	}
	r.table.Store(Build(Input{Options: r.options}, nil))
	r.build = newMetrics(r.Table, c.Metrics)
	return r
}

// Table returns the current table. It is never nil.
func (r *Registry) Table() *Table { return r.table.Load() }

// Watch watches a ConfigMap, or the object of Backend.Reference, until ctx ends, and returns ctx's error. It calls
// changed from one goroutine with the data of every state, including the first, and with an error that wraps
// fs.ErrNotExist if the object does not exist. Only the local apiserver has ClusterTrustBundles.
func (r *Registry) Watch(ctx context.Context, ref types.NamespacedName, changed func(map[string][]byte, error)) error {
	if ref.Namespace == "" {
		return r.sources.cluster.watchBundle(ctx, ref.Name, changed)
	}
	return r.watch(ctx, ref, changed, nil)
}

// watch is Watch. It calls denied if the local apiserver forbids to read the ConfigMap.
func (r *Registry) watch(ctx context.Context, ref types.NamespacedName,
	changed func(map[string][]byte, error), denied func()) error {
	return r.sources.watch(ctx, ref, func(cm *corev1.ConfigMap) {
		if cm == nil {
			changed(nil, fmt.Errorf("getting ConfigMap %s: %w", ref, fs.ErrNotExist))
			return
		}
		data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
		for k, v := range cm.Data {
			data[k] = []byte(v)
		}
		maps.Copy(data, cm.BinaryData)
		changed(data, nil)
	}, denied)
}

// Unread returns why something of the local apiserver cannot be read, and why the APIServices: of it, or of etcd.
// Nil: all is read, but for what is forbidden.
func (r *Registry) Unread() (local, stored error) {
	return r.sources.cluster.fault(), r.sources.stored.fault()
}

// Report takes a result of the prober. It never blocks. A report that changes nothing makes no
// table, nor does one about a Backend or an address that the table no longer has.
func (r *Registry) Report(report Report) {
	k := reportKey{report.Name, report.Address, report.Backend}
	r.changes.record(nil, func(b *batch) { b.reports[k] = report })
}

// Run reads the source and keeps the table up to date until ctx ends or the source proves unusable.
func (r *Registry) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.sources.run(ctx, r.changes) })
	g.Go(func() error { return r.write(ctx) })
	g.Go(func() error { return r.logChanges(ctx) })
	if last := r.sources.remembered; last.path != "" {
		g.Go(func() error { last.follow(ctx, r.Table); return ctx.Err() })
	}
	if r.policy != nil {
		g.Go(func() error { return r.policy.run(ctx) })
	}
	// A directory's claims are compared with what the local apiserver serves, see objects.faults.
	if r.sources.cluster != nil && r.sources.stored != nil {
		s := &shadows{of: r, client: r.sources.cluster.api.CoreV1().RESTClient()}
		g.Go(func() error { return s.run(ctx) })
	}
	return g.Wait()
}

const (
	// leastPause batches the events of a change: a rollout writes slices and Service in 1–2 ms.
	leastPause = 2 * time.Millisecond
	// mostPause bounds the age of the table, far below the 0.1 s within which a new APIService must be routable.
	mostPause = 40 * time.Millisecond
	// logPause is how old a line may be.
	logPause = 2 * time.Second
)

// write is the one writer.
func (r *Registry) write(ctx context.Context) error {
	o, pause := newObjects(r.awaited...), leastPause
	var last time.Time
	for {
		var rebuild <-chan time.Time
		if at := r.Table().rebuildAt; !at.IsZero() {
			rebuild = time.After(time.Until(at))
		}
		select {
		case <-r.changes.signal:
		case <-rebuild:
		case <-ctx.Done():
			return ctx.Err()
		}
		// In a storm of events, for example ten thousand verdicts, there are 25 tables a second:
		// building one is cheap, but every reader has to process it.
		if pause = min(2*pause, mostPause); time.Since(last) > mostPause {
			pause = leastPause
		}
		if !latest.Sleep(ctx, pause) {
			return ctx.Err()
		}
		r.step(o)
		last = time.Now()
	}
}

func (r *Registry) step(o *objects) {
	b := r.changes.take()
	o.apply(&b)
	if slices.ContainsFunc(o.awaited, func(k kind) bool { return !o.read[k] }) {
		return // the table would not be complete
	}
	start, prev := time.Now(), r.Table()
	next := Build(Input{
		APIServices: o.apiServices,
		Services:    o.services[kindService],
		Slices:      o.grouped[kindSlice],
		Touched:     o.touched,
		Reports:     slices.Collect(maps.Values(b.reports)),
		Options:     r.options,
		Problems:    o.faults(),
		Shadowed:    o.shadowed,
		policy:      o.policy,
		bundles:     b.bundles,
		Complete:    true,
		Now:         start,

		FallbackServices: o.services[kindFallbackService],
		FallbackSlices:   o.grouped[kindFallbackSlice],
	}, prev)
	r.build.Observe(time.Since(start).Seconds())
	if next == prev {
		return
	}
	// Store before close: readers that wake up must find the new table, in loops over latest.Of and latest.Changes.
	r.table.Store(next)
	close(prev.superseded)
}

// logChanges logs changes of the APIServices. It reads the table like any other reader, because
// logging is I/O, which the writer must not do. It misses tables of the logPause: of a verdict that flaps, say, most.
func (r *Registry) logChanges(ctx context.Context) error {
	last := &Table{}
	for t, changes := range latest.Changes(ctx, r.Table, nil) {
		r.compare(last, t, changes)
		if last = t; len(changes) > 0 {
			latest.Sleep(ctx, logPause)
		}
	}
	return ctx.Err()
}

func (r *Registry) compare(last, t *Table, changes []latest.Change[*Entry]) {
	if !last.complete && t.complete {
		r.log.Info("registry is complete", "apiservices", len(t.entries))
	}
	for _, c := range changes {
		old, e := cmp.Or(c.Old, &Entry{}), c.New
		if e == nil {
			continue
		}
		if v := e.Verdict; v.Reason != old.Verdict.Reason && v.Reason != ReasonLocal {
			r.log.Info("availability changed",
				"apiservice", e.Name, "status", string(v.Status), "reason", v.Reason, "message", v.Message)
		}
		for _, p := range e.Problems {
			if !slices.Contains(old.Problems, p) {
				r.log.Warn("problem with APIService", "apiservice", e.Name, "problem", p)
			}
		}
	}
	r.compareProblems(last.problems, t.problems)
}

// compareProblems logs problems that came, and files and objects in etcd that have none any more.
func (r *Registry) compareProblems(last, now []directory.Fault) {
	known, bad := sets.New(last...), sets.New[string]() // bad files
	for _, p := range now {
		name, stored := strings.CutPrefix(p.File, inEtcd)
		switch {
		case known.Has(p):
		case p.Note:
			r.log.Info("two sources have an APIService", "file", p.File, "line", p.Line, "note", p.Message)
		case stored:
			r.log.Error("problem with APIService in etcd", "apiservice", name, "problem", p.Message)
		default:
			r.log.Error("problem with manifest: of what is invalid, the last valid state is kept",
				"file", p.File, "line", p.Line, "field", p.Field, "problem", p.Message)
		}
		if !p.Note {
			bad.Insert(p.File)
		}
	}
	for _, p := range last {
		if p.Note || bad.Has(p.File) {
			continue
		}
		bad.Insert(p.File) // once, however many problems it had
		if name, stored := strings.CutPrefix(p.File, inEtcd); stored {
			r.log.Info("APIService in etcd has no problem any more", "apiservice", name)
		} else {
			r.log.Info("manifest has no problem any more", "file", p.File)
		}
	}
}
