// Package documents has the common part of all merged documents. One goroutine per backend of the table asks it at once
// when it is new, has changed or has recovered, and otherwise from time to time. One for each local apiserver asks it
// after hints of a change. One publishes the results. documents/discovery and documents/openapi are the two kinds.
//
// The concurrency rule: the goroutine of Sources.Run publishes. A backend's goroutine stores its result as an immutable
// value behind an atomic pointer. No goroutine waits for another one's backend, so a hung backend delays only itself.
//
// This package knows nothing of the documents' content.
package documents

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Do sends a request to one server.
type Do = func(ctx context.Context, r *http.Request) (*http.Response, error)

// Config is common to all documents. Required: Tables, From and, with a local apiserver, Local, Ready, Each and Only.
type Config struct {
	Tables latest.Tables[*registry.Table] // the current table
	// From sends requests to a remote entry's backend, under an identity that may read its documents. Required.
	From  func(e *registry.Entry) Do
	Local func(server string) Do   // sends requests to a local apiserver, likewise. Nil means that there is none
	Ready func(server string) bool // reports whether a local apiserver is healthy: until then requests may wait
	// Each calls f for each local apiserver, with a context that lasts as long as the server, see backend.Local.Each.
	Each func(ctx context.Context, f func(ctx context.Context, server string)) error
	// Only is told, before a document lists it, what not all of the known servers serve, see backend.Local.Only.
	Only func(document string, known []string, by map[schema.GroupVersionResource][]string)
	// FetchOwn sends a request to this process for what it serves itself: apiregistration.k8s.io with the dir:
	// registry, whatever the local apiserver has. Run uses it once. Nil means nothing.
	FetchOwn     Do
	Made         bool // Local APIServices are made of one local apiserver's list of groups (registry/directory)
	metric.Sinks      // failures, and fairlead_<document>_*
}

// Kind is one kind of document: what is fetched, and what is made of it. S is the state of one backend, L that of a
// local apiserver, immutable once returned. Every field but Metrics is required.
type Kind[S, L any] struct {
	Name      string                 // the document's, in texts and (in lower case) in metrics
	Every     time.Duration          // between requests to a local apiserver while nothing happens
	Verdicts  bool                   // verdicts change the document
	SizesHelp string                 // of the metric of Sizes
	Metrics   []prometheus.Collector // further ones of this kind. Nil means none
	// Ask asks a backend once and returns its next state, and whether that changes the document. entries are those of
	// the backend that may be asked now; there is at least one. A nil state means that there is nothing to ask.
	Ask func(ctx context.Context, known *S, entries []*registry.Entry) (next *S, changed bool, err error)
	// Join returns s with the parts of former that s lacks, or that were answered later. Both are of one Service.
	Join func(s, former *S) *S
	// AskLocal asks a local apiserver, stores its states in known, which is nil before, and calls Touch for changes.
	AskLocal func(ctx context.Context, server string, known *atomic.Pointer[L]) error
	// Publish makes the documents of the current state. It is called when that or the table has changed, except for
	// endpoints and, without Verdicts, for verdicts. It returns when to call it again anyway. Zero means never.
	Publish func(t *registry.Table) (again time.Time)
	// AskOwn reads by Config.FetchOwn what this process serves itself, until it is read once, before anything else.
	AskOwn func(ctx context.Context) error
	Status func(show func(Freshness))                  // calls show with the freshness of each APIService's part
	Sizes  func(show func(document string, bytes int)) // calls show with the size of each document
}

// Sources are those of a merged document: the table's backends, each with its own goroutine, and the local apiservers.
type Sources[S, L any] struct {
	cfg      Config
	kind     Kind[S, L]
	log      *slog.Logger
	polls    *prometheus.CounterVec // :: result
	changed  chan time.Time         // one slot: something to publish
	touched  atomic.Bool            // publish even if the table has not changed
	locals   sync.Map               // :: name → *local[L]
	backends atomic.Pointer[backends[S, L]]
	running  sync.WaitGroup // the backends' goroutines
	// Departed are group-versions that have left the table; true: they were remote. Publish forgets some. Local ones of
	// one local apiserver's list (Config.Made) are not among them: another one may have what that lacks.
	Departed map[schema.GroupVersion]bool
}

// New makes the Sources of a kind of document.
func New[S, L any](cfg Config, kind Kind[S, L]) *Sources[S, L] {
	s := &Sources[S, L]{
		cfg: cfg, kind: kind, log: cfg.Log(), Departed: make(map[schema.GroupVersion]bool),
		changed: make(chan time.Time, 1), polls: metric.Counter("fairlead_"+strings.ToLower(kind.Name)+"_polls_total",
			fmt.Sprintf("Requests to backends and to the local apiserver for %s, by result.", kind.Name), "result",
			"ok", string(ReasonUnreachable), string(ReasonTimeout), string(ReasonStatus),
			string(ReasonTooLarge), string(ReasonInvalid)),
	}
	s.backends.Store(&backends[S, L]{})
	metric.Register(cfg.Metrics, append(kind.Metrics, s.polls, kind.gauges())...)
	return s
}

// Touch asks for another publication. It never blocks.
func (s *Sources[S, L]) Touch() {
	s.touched.Store(true)
	latest.Wake(s.changed)
}

// Known returns where the state of a backend is stored. Nil means that there is no such backend.
func (s *Sources[S, L]) Known(of *registry.Backend) *atomic.Pointer[S] {
	if b := (*s.backends.Load())[of]; b != nil {
		return &b.known
	}
	return nil
}

// NotReady returns the error for requests until the documents are complete.
func (s *Sources[S, L]) NotReady() *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(s.kind.Name + " is not complete yet, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// mostRest bounds how long Run rests after publishing: every change is seen within a quarter of a second.
const mostRest = 200 * time.Millisecond

// Run follows the table, the local apiserver and the backends until ctx ends.
func (s *Sources[S, L]) Run(ctx context.Context) error {
	if s.cfg.FetchOwn != nil {
		err := s.kind.AskOwn(ctx)
		for reasonOf(err) == ReasonTimeout && ctx.Err() == nil { // this process is slow, or was stopped
			err = s.kind.AskOwn(ctx)
		}
		if err != nil {
			return fmt.Errorf("reading %s of this process itself: %w", s.kind.Name, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var local sync.WaitGroup
	defer func() { cancel(); local.Wait(); s.running.Wait() }()
	if s.cfg.Local != nil {
		local.Go(func() { _ = s.cfg.Each(ctx, s.followLocal) }) // that of ctx
	}
	again := time.AfterFunc(time.Hour, s.Touch) // or when Publish says
	defer again.Stop()
	complete, asked := false, false // the local apiservers are asked first because they are new
	for t, changes := range latest.Changes(ctx, s.cfg.Tables.Table, s.changed) {
		begun := time.Now()
		if asked && slices.ContainsFunc(changes, func(c change) bool { return c.New.Moved(c.Old) }) {
			s.LocalChanged("")
		}
		asked = true
		now := s.update(ctx, t, changes)
		for _, c := range changes {
			if c.New != nil {
				delete(s.Departed, c.New.GroupVersion)
			} else if remote := !c.Old.Local(); remote || !s.cfg.Made {
				s.Departed[c.Old.GroupVersion] = remote
			}
		}
		news := s.touched.Swap(false) || complete != t.Complete() || slices.ContainsFunc(changes, s.matters)
		if complete = t.Complete(); news {
			if at := s.kind.Publish(t); !at.IsZero() {
				again.Reset(time.Until(at))
			}
		}
		// Not before: until documents without a backend are published, those before may still read its state.
		s.backends.Store(now)
		latest.Sleep(ctx, min(restFactor*time.Since(begun), mostRest))
	}
	return ctx.Err()
}

// matters reports whether a change of the table may change the document.
func (s *Sources[S, L]) matters(c change) bool {
	if c.Old == nil || c.New == nil || c.Old.Backend != c.New.Backend || c.Old.Kind() != c.New.Kind() ||
		c.Old.Hidden != c.New.Hidden ||
		!slices.EqualFunc(c.Old.Further, c.New.Further, func(a, b *registry.Entry) bool { return a.Name == b.Name }) {
		return true
	}
	was, is := &c.Old.Object.Spec, &c.New.Object.Spec
	return was.GroupPriorityMinimum != is.GroupPriorityMinimum || was.VersionPriority != is.VersionPriority ||
		(s.kind.Verdicts || c.New.Rule != nil) && c.Old.Verdict != c.New.Verdict || // whether a further backend exists,
		c.New.Rule != nil && (c.Old.Rule.When == nil) != (c.New.Rule.When == nil) // and whether it is a standby
}

func (s *Sources[S, L]) ask(ctx context.Context, b *backend[S, L], entries []*registry.Entry) error {
	was := b.known.Load()
	next, changed, err := s.kind.Ask(ctx, was, entries)
	if ctx.Err() != nil || next == nil {
		return ctx.Err() // the backend has left the table: ignore its response
	}
	t := s.cfg.Tables.Table()
	moved := func(e *registry.Entry) bool {
		now := t.Entry(e.GroupVersion)
		return now == nil || !slices.ContainsFunc(now.Servers(), func(o *registry.Entry) bool {
			return o.Name == e.Name && o.Backend == e.Backend
		})
	}
	// Requests follow an APIService to its next backend, whose answer would pass for what this one has of the others.
	if slices.ContainsFunc(entries, moved) {
		return fmt.Errorf("an APIService has moved meanwhile: the answer may be another backend's")
	}
	for !b.known.CompareAndSwap(was, next) { // it got a former backend's state meanwhile
		was = b.known.Load()
		next, changed = s.kind.Join(next, was), true
	}
	s.note(err, &b.failing, entries[0].Name)
	if changed {
		s.Touch()
	}
	return err
}

// Freshness says how current one remote APIService's part of a merged document is.
type Freshness struct {
	Name string `json:"-"` // the APIService's
	// Reason is why the backend's last response could not be used: a Reason, "unavailable" when its
	// verdict says so, or "pending" before the first request. Empty means that it could.
	Reason    string    `json:"reason,omitempty"`
	Message   string    `json:"message,omitempty"`  // the cause, for the operator: it may contain addresses
	Confirmed time.Time `json:"confirmed,omitzero"` // when the backend last gave a complete response. Zero: never
}

// Of returns f with the name of e and why the last request for it failed, if it did.
func (f Freshness) Of(e *registry.Entry, err error) Freshness {
	f.Name = e.Name
	switch {
	case e.Verdict.Status == corev1.ConditionFalse:
		f.Reason, f.Message = "unavailable", e.Verdict.Reason
	case err != nil:
		f.Reason, f.Message = string(reasonOf(err)), err.Error()
	case f.Confirmed.IsZero():
		f.Reason = "pending"
	}
	return f
}

// note counts a backend's answer by its result, and logs when it fails in another way than the last one.
func (s *Sources[S, L]) note(err error, failing *Reason, apiService string) {
	reason := reasonOf(err)
	s.polls.WithLabelValues(string(cmp.Or(reason, "ok"))).Inc()
	switch log := s.log.With("apiservice", apiService); {
	case err != nil && reason != *failing:
		log.Warn(s.kind.Name+" of backend cannot be used, the last good one stays", "reason", reason, "err", err)
	case err == nil && *failing != "":
		log.Info(s.kind.Name + " of backend can be used again")
	}
	*failing = reason
}

// gauges show how current and how large the document is: fairlead_<document>_failing, _age_seconds and _document_bytes.
func (k *Kind[S, L]) gauges() metric.Gauges {
	name := "fairlead_" + strings.ToLower(k.Name)
	failing := prometheus.NewDesc(name+"_failing",
		"1 while a remote APIService's part of "+k.Name+" is not confirmed by its backend, by reason.",
		[]string{"name", "reason"}, nil)
	age := prometheus.NewDesc(name+"_age_seconds",
		"Time since a remote APIService's backend last confirmed its part of "+k.Name+". Absent if it never did.",
		[]string{"name"}, nil)
	bytes := prometheus.NewDesc(name+"_document_bytes", k.SizesHelp, []string{"document"}, nil)
	all := []*prometheus.Desc{failing, age, bytes}
	return metric.Gauges{All: all, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
		now := time.Now()
		k.Status(func(f Freshness) {
			if f.Reason != "" {
				gauge(failing, 1, f.Name, f.Reason)
			}
			if !f.Confirmed.IsZero() {
				gauge(age, now.Sub(f.Confirmed).Seconds(), f.Name)
			}
		})
		k.Sizes(func(document string, size int) { gauge(bytes, float64(size), document) })
	}}
}
