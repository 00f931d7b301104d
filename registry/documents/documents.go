package documents

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// Do sends a request to one server.
type Do = func(ctx context.Context, r *http.Request) (*http.Response, error)

// Config is what every document needs: Table and Fetch, and FetchLocal unless there is no local
// apiserver.
type Config struct {
	// Table returns the table in force. Required.
	Table func() *registry.Table
	// Fetch sends a request to a remote entry's backend, under an identity that may read its
	// documents. Required.
	Fetch func(ctx context.Context, e *registry.Entry, r *http.Request) (*http.Response, error)
	// FetchLocal sends a request to the local apiserver, likewise. Nil: there is none.
	FetchLocal Do
	// FetchOwn asks this process for what it serves itself: apiregistration.k8s.io with the dir:
	// registry, whatever the local apiserver says of that group. It is asked once. Nil: nothing.
	FetchOwn Do
	// Logger is for what goes wrong. Nil discards.
	Logger *slog.Logger
	// Metrics is where fairlead_<document>_* are registered. Nil: unregistered.
	Metrics prometheus.Registerer
}

// From sends requests to an entry's backend.
func (c *Config) From(e *registry.Entry) Do {
	return func(ctx context.Context, r *http.Request) (*http.Response, error) { return c.Fetch(ctx, e, r) }
}

// Kind is one kind of document: what is asked for, and what is made of it. S is what is known of
// one backend; once returned it is not changed. Every field but Pace and Metrics is required.
type Kind[S any] struct {
	// Name is the document's, in texts and (in lower case) in metrics.
	Name string
	// Ask asks a backend once and returns what is known afterwards, and whether that makes another
	// document. The entries are those of the backend that may be asked now; there is at least one.
	// Nil: there is nothing to ask it for.
	Ask func(ctx context.Context, known *S, entries []*registry.Entry) (next *S, changed bool, err error)
	// AskLocal asks the local apiserver once. What it finds the kind keeps, and touches the Sources.
	AskLocal func(ctx context.Context) error
	// Pace is how often it asks the local apiserver.
	Pace Pace
	// Publish makes the documents of what is known now. It is called when something of that has
	// changed, which endpoints are not, nor verdicts without Verdicts. It returns when it wants to be
	// called again though nothing happens. Zero: never.
	Publish func(t *registry.Table) (again time.Time)
	// Verdicts says that verdicts make another document.
	Verdicts bool
	// Status shows how current each APIService's part is.
	Status func(show func(Freshness))
	// Sizes shows how large the documents are, of which SizesHelp says more.
	Sizes     func(show func(document string, bytes int))
	SizesHelp string
	// Metrics are further ones of this kind's own. Nil: none.
	Metrics []prometheus.Collector
}

// Sources is where the parts of a merged document come from: the backends of the table, each asked
// by a goroutine of its own, and the local apiserver.
type Sources[S any] struct {
	cfg     Config
	kind    Kind[S]
	log     *slog.Logger
	metrics *metrics
	set     *set[S]
	changed chan time.Time // holds one token: something to publish
	touched atomic.Bool    // there is something to publish, whatever the table says
	hints   chan struct{}  // holds one token: the local apiserver may have something new to say

	localFails bool // of the local apiserver's goroutine
}

// New makes the Sources of a kind of document.
func New[S any](cfg Config, kind Kind[S]) (*Sources[S], error) {
	if cfg.Table == nil || cfg.Fetch == nil {
		return nil, fmt.Errorf("making %s: Table and Fetch are required", kind.Name)
	}
	s := &Sources[S]{
		cfg: cfg, kind: kind, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		changed: make(chan time.Time, 1), hints: make(chan struct{}, 1),
	}
	s.set = newSet(s.ask)
	s.metrics = newMetrics(kind.Name, kind.SizesHelp, kind.Status, kind.Sizes)
	return s, metric.Register(cfg.Metrics, kind.Name, append(kind.Metrics, s.metrics)...)
}

// Touch says that there is something to publish anew. It never blocks.
func (s *Sources[S]) Touch() {
	s.touched.Store(true)
	latest.Wake(s.changed)
}

// LocalChanged hints that the local apiserver may have something new to say: a CRD has changed. It
// never blocks.
func (s *Sources[S]) LocalChanged() { latest.Wake(s.hints) }

// Known is where what is known of a backend of the table is kept. Nil: there is no such backend.
func (s *Sources[S]) Known(of *registry.Backend) *atomic.Pointer[S] {
	if b := s.set.find(of); b != nil {
		return &b.known
	}
	return nil
}

// NotReady is the answer to requests until the documents are complete.
func (s *Sources[S]) NotReady() *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(s.kind.Name + " is not complete yet, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// mostRest bounds how long Run rests after publishing: a change is seen in a quarter of a second,
// whatever goes on.
const mostRest = 200 * time.Millisecond

// Run follows the table, the local apiserver and the backends until ctx ends.
func (s *Sources[S]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var local sync.WaitGroup
	defer func() { cancel(); local.Wait(); s.set.running.Wait() }()
	if s.cfg.FetchLocal != nil {
		local.Go(func() { s.kind.Pace.follow(ctx, s.hints, s.askLocal) })
	}
	again := time.AfterFunc(time.Hour, s.Touch) // the hour is nothing: Publish says when
	again.Stop()
	defer again.Stop()
	complete := false
	for t, changes := range latest.Changes(ctx, s.cfg.Table, s.changed) {
		begun := time.Now()
		if slices.ContainsFunc(changes, movesLocal) {
			s.LocalChanged()
		}
		s.set.update(ctx, changes)
		news := s.touched.Swap(false) || complete != t.Complete() || slices.ContainsFunc(changes, s.matters)
		if complete = t.Complete(); news {
			if at := s.kind.Publish(t); !at.IsZero() {
				again.Reset(time.Until(at))
			}
		}
		s.set.forget()
		sleep(ctx, min(restFactor*time.Since(begun), mostRest))
	}
	return ctx.Err()
}

// matters reports whether a change of the table may make another document.
func (s *Sources[S]) matters(c latest.Change[*registry.Entry]) bool {
	if c.Old == nil || c.New == nil || c.Old.Backend != c.New.Backend || c.Old.Kind() != c.New.Kind() {
		return true
	}
	was, is := &c.Old.Object.Spec, &c.New.Object.Spec
	return was.GroupPriorityMinimum != is.GroupPriorityMinimum || was.VersionPriority != is.VersionPriority ||
		s.kind.Verdicts && c.Old.Verdict != c.New.Verdict
}

// ask asks a backend, and keeps what it has said.
func (s *Sources[S]) ask(ctx context.Context, known *atomic.Pointer[S], entries []*registry.Entry) error {
	next, changed, err := s.kind.Ask(ctx, known.Load(), entries)
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the backend is gone: what it said no longer matters
	case next == nil:
		return nil
	}
	known.Store(next)
	s.metrics.polled(err)
	if changed {
		s.Touch()
	}
	return err
}

// askLocal asks the local apiserver.
func (s *Sources[S]) askLocal(ctx context.Context) error {
	err := s.kind.AskLocal(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.metrics.polled(err)
	switch {
	case err != nil && !s.localFails:
		s.log.Warn("documents of local apiserver cannot be read, what was known stays", "document", s.kind.Name, "err", err)
	case err == nil && s.localFails:
		s.log.Info("documents of local apiserver can be read again", "document", s.kind.Name)
	}
	s.localFails = err != nil
	return err
}

// movesLocal reports whether the local apiserver may have something new to say after a change: group-versions
// have come, gone or changed hands.
func movesLocal(c latest.Change[*registry.Entry]) bool {
	return c.Old == nil || c.New == nil || c.Old.Local() != c.New.Local()
}
