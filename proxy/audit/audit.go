// Package audit records who asked for what, as kube-apiserver's audit log does: the same policy, the same events, the same lines. Rules and encoding are
// k8s.io/apiserver's own; what is here is what makes them cost a request next to nothing.
//
// The one rule of concurrency: a request's Event belongs to the request, and is used by one goroutine at a time; what it emits are copies in a bounded queue,
// and one goroutine (Run) encodes and writes them. When what they are written to is slower than the requests, events are dropped and counted, as
// kube-apiserver's batch mode does: the log must not be what takes the front door down.
//
// What this package is not: it decides nothing and sees no credentials. A query's secrets are masked before they are kept.
package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// Config is what a Log needs.
type Config struct {
	// Policy says which requests are recorded, at which stages and how much of them. Required.
	Policy audit.PolicyRuleEvaluator
	// Writer gets whole lines, from Run alone. Required.
	Writer io.Writer
	// Format is json, or legacy for one line of text per event. Empty: json.
	Format string
	// Local records what the local apiserver answers too. False: it records that itself, with the same Audit-ID and knowing whose token it was.
	Local bool
	// Logger hears of events that were lost. Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_audit_*. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Log is an audit log. Open may be called at any time by any goroutine; events are written while Run runs, and when it ends.
type Log struct {
	cfg     Config
	log     *slog.Logger
	backend audit.Backend
	// lines is what the backend writes to, Run's own.
	lines bytes.Buffer
	queue chan entry
	// places are the events in the queue, waiting the size of their bodies; both by user.
	places, waiting bound.Places
	events          prometheus.Counter
	lost            prometheus.Counter
	missing         atomic.Int64 // of lost, not told yet
	told            time.Time    // Run's own
}

const (
	// queued is kube-apiserver's own bound of its batch mode's buffer.
	queued = 10_000
	// maxWaiting bounds the bodies among them: some hundreds of the largest.
	maxWaiting = 64 << 20
	// soon is when lines are written although more events wait: a write of that size costs no more per line than a larger one.
	soon = 64 << 10
	// tell is how often losses are told at most.
	tell = time.Minute
)

// New returns a Log.
func New(cfg Config) (*Log, error) {
	if cfg.Policy == nil || cfg.Writer == nil {
		return nil, errors.New("making an audit log: Policy and Writer are required")
	}
	switch cfg.Format {
	case "":
		cfg.Format = auditlog.FormatJson
	case auditlog.FormatJson, auditlog.FormatLegacy:
	default:
		return nil, fmt.Errorf("making an audit log: format %q is neither json nor legacy", cfg.Format)
	}
	l := &Log{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), queue: make(chan entry, queued),
		events: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_audit_events_total", Help: "Events of the audit log that were written."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_audit_lost_total", Help: "Events of the audit log that were lost, because it could not be written, or not fast enough.",
		}),
	}
	l.places.Lend, l.waiting.Lend = true, true // one that is busy at night has the log for itself
	l.backend = auditlog.NewBackend(&l.lines, cfg.Format, auditv1.SchemeGroupVersion)
	return l, metric.Register(cfg.Metrics, "the audit log", l.events, l.lost)
}

// Local reports whether what the local apiserver answers is recorded too.
func (l *Log) Local() bool { return l.cfg.Local }

// entry is an event in the queue, with what it holds of its bounds.
type entry struct {
	ev            *auditinternal.Event
	place, bodies bound.Place
}

// emit puts an event into the queue, or loses it.
func (l *Log) emit(ev *auditinternal.Event) {
	from := source(ev)
	place, ok := l.places.Take(from, 1, queued)
	if !ok {
		l.lose(1)
		return
	}
	e := entry{ev: ev, place: place}
	if n := bodies(ev); n > 0 {
		if e.bodies, ok = l.waiting.Take(from, n, maxWaiting); !ok {
			place.Leave()
			l.lose(1)
			return
		}
	}
	l.queue <- e // which has room for as many as there are places
}

// source is who makes an event: a user, or an address of whom nobody knows.
func source(ev *auditinternal.Event) bound.Source {
	if name := ev.User.Username; name != "" && name != user.Anonymous {
		return bound.Source{User: name}
	}
	if n := len(ev.SourceIPs); n > 0 {
		return bound.Source{Address: ev.SourceIPs[n-1]} // the connection's own; those before it are its word
	}
	return bound.Source{}
}

func (l *Log) lose(n int) {
	l.lost.Add(float64(n))
	l.missing.Add(int64(n))
}

func bodies(ev *auditinternal.Event) int64 {
	n := 0
	if ev.RequestObject != nil {
		n += len(ev.RequestObject.Raw)
	}
	if ev.ResponseObject != nil {
		n += len(ev.ResponseObject.Raw)
	}
	return int64(n)
}

// Run writes events until ctx ends, and then what is left.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case e := <-l.queue:
			l.write(e)
		case <-ctx.Done():
			for {
				select {
				case e := <-l.queue:
					l.write(e)
				default:
					return ctx.Err()
				}
			}
		}
	}
}

// write encodes an event and what waits behind it, and writes their lines with as few calls as that allows. Lines are never torn: what is written to may
// change files between two calls.
func (l *Log) write(e entry) {
	defer l.tellLosses()
	for n := 0; ; {
		e.bodies.Leave()
		e.place.Leave()
		if l.backend.ProcessEvents(e.ev) {
			n++
		} else {
			l.lose(1)
		}
		if l.lines.Len() < soon {
			select {
			case e = <-l.queue:
				continue
			default:
			}
		}
		if _, err := l.cfg.Writer.Write(l.lines.Bytes()); err != nil {
			l.lose(n)
			l.log.Debug("writing audit log", "err", err)
		} else {
			l.events.Add(float64(n))
		}
		if l.lines.Reset(); l.lines.Cap() > 16*soon {
			l.lines = bytes.Buffer{} // grown by a large body
			l.backend = auditlog.NewBackend(&l.lines, l.cfg.Format, auditv1.SchemeGroupVersion)
		}
		return
	}
}

// tellLosses says that events were lost, but not for each.
func (l *Log) tellLosses() {
	if l.missing.Load() == 0 || time.Since(l.told) < tell {
		return
	}
	l.told = time.Now()
	l.log.Error("audit log lost events", "events", l.missing.Swap(0))
}
