// Package audit writes an audit log like kube-apiserver's: the same policy, events and format.
// Rules and encoding are k8s.io/apiserver's; this package keeps the cost for a request small.
//
// The concurrency rule: an Event belongs to its request, and is used by one goroutine at a time. It emits copies into a
// bounded queue, and one goroutine (Run) encodes and writes them. If the writer is slower than the requests, events are
// dropped and counted, as in kube-apiserver's batch mode: the log must not take the front door down.
//
// This package decides nothing and sees no credentials. It masks secrets in a query that it keeps.
package audit

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// Config configures a Log (makeAudit in cmd/fairlead).
type Config struct {
	Policy       audit.PolicyRuleEvaluator // decides which requests are recorded, at which stages and levels. Required
	Writer       io.Writer                 // gets whole lines, only from Run. Required
	Format       string                    // json, or legacy for one line of text per event. Empty means json
	metric.Sinks                           // the loss of events, and fairlead_audit_*
}

// Log is an audit log. Open is safe for concurrent use. Events are written while Run runs and ends.
type Log struct {
	cfg      Config
	backend  audit.Backend
	lines    bytes.Buffer // the backend's output, used by Run only
	queue    chan entry
	reading  sync.Mutex // a body that is read becomes up to 72 times as large: one at a time
	events   prometheus.Counter
	lost     prometheus.Counter
	unlogged atomic.Int64   // of lost, not logged yet
	logging  rate.Sometimes // logs losses; used by Run only
	// places counts events in the queue, waiting the size of their bodies and long texts, by user.
	places, waiting bound.Places
	captured        bound.Places // counts the bodies of requests under way, by user
}

const (
	queued          = 10_000      // the buffer size of kube-apiserver's batch mode
	maxWaiting      = 64 << 20    // limits the queued bodies and long texts: some hundreds of the largest
	longText        = 1 << 10     // the size from which texts of an event count: 10,000 events with less take 10 MB
	soon            = 64 << 10    // the size at which lines are written although events wait: more is no cheaper each
	lossLogInterval = time.Minute // the least time between two logs of losses
)

// New returns a Log.
func New(cfg Config) *Log {
	cfg.Format, cfg.Logger = cmp.Or(cfg.Format, auditlog.FormatJson), cfg.Log()
	l := &Log{
		cfg: cfg, queue: make(chan entry, queued), logging: rate.Sometimes{Interval: lossLogInterval},
		events: metric.Count("fairlead_audit_events_total", "Events of the audit log that were written."),
		lost: metric.Count("fairlead_audit_lost_total",
			"Events of the audit log that were lost, because it could not be written, or not fast enough."),
	}
	l.places.Lend, l.waiting.Lend = true, true // a single busy user may use most of the queue
	l.backend = auditlog.NewBackend(&l.lines, cfg.Format, auditv1.SchemeGroupVersion)
	metric.Register(cfg.Metrics, l.events, l.lost)
	return l
}

type entry struct {
	ev            *auditinternal.Event
	place, bodies bound.Place
}

// emit puts an event into the queue, or drops it.
func (l *Log) emit(ev *auditinternal.Event, query int, from bound.Source) {
	place, ok := l.places.Take(from, 1, queued)
	e := entry{ev: ev, place: place}
	if ok { // else it is lost, whatever its size
		if n := size(ev, query); n > 0 {
			e.bodies, ok = l.waiting.Take(from, n, maxWaiting)
		}
	}
	if !ok {
		e.place.Leave()
		l.lose(1)
		return
	}
	l.queue <- e //fairlead:boundary never waits: the queue has room for all places
}

func (l *Log) lose(n int) {
	l.lost.Add(float64(n))
	l.unlogged.Add(int64(n))
}

// size returns the bytes that a caller chose: bodies, method and target, which a message may repeat, and groups of a
// front proxy's users and of impersonated ones.
func size(ev *auditinternal.Event, query int) int64 {
	n := query + len(ev.Verb) + len(ev.RequestURI) + ev.User.Size() + ev.ImpersonatedUser.Size()
	if ev.ResponseStatus != nil {
		n += len(ev.ResponseStatus.Message)
	}
	if n < longText {
		n = 0
	}
	if ev.RequestObject != nil {
		n += len(ev.RequestObject.Raw)
	}
	if ev.ResponseObject != nil {
		n += len(ev.ResponseObject.Raw)
	}
	return int64(n)
}

// Run writes events until ctx ends, and then the remaining ones.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case e := <-l.queue:
			l.write(e)
		case <-ctx.Done():
			for len(l.queue) > 0 {
				l.write(<-l.queue)
			}
			return ctx.Err()
		}
	}
}

// write encodes an event and those behind it, and writes their lines in few calls, each of whole lines: the file may
// change in between. A long line has a call of its own: the writer may refuse it, because no file may be as long.
func (l *Log) write(e entry) {
	defer func() {
		if l.unlogged.Load() > 0 {
			l.logging.Do(func() { l.cfg.Logger.Error("audit log lost events", "events", l.unlogged.Swap(0)) })
		}
	}()
	for {
		e.bodies.Leave()
		e.place.Leave()
		before := l.lines.Len()
		if !l.backend.ProcessEvents(e.ev) {
			l.lose(1)
		}
		if l.lines.Len()-before > soon {
			l.flush(l.lines.Next(before))
			if !l.put(l.lines.Bytes()) { // the writer refuses it: then without its bodies
				l.lines.Reset()
				l.backend.ProcessEvents(withoutBodies(e.ev))
				l.flush(l.lines.Bytes())
			}
			break
		}
		if l.lines.Len() >= soon || len(l.queue) == 0 {
			l.flush(l.lines.Bytes())
			break
		}
		e = <-l.queue // nobody else receives
	}
	if l.lines.Reset(); l.lines.Cap() > 16*soon {
		l.lines = bytes.Buffer{} // grown by a large body
	}
}

func (l *Log) flush(lines []byte) {
	if !l.put(lines) {
		l.lose(count(lines))
	}
}

func (l *Log) put(lines []byte) bool {
	if len(lines) == 0 {
		return true
	}
	if _, err := l.cfg.Writer.Write(lines); err != nil {
		return false
	}
	l.events.Add(float64(count(lines)))
	return true
}

func count(lines []byte) int { return bytes.Count(lines, []byte("\n")) }

// Mask replaces the values of a raw query's parameters whose names suggest a secret, such as a
// token, a password or a signature. Everything else stays, byte for byte. kube-apiserver logs the
// whole query, but extension servers and proxied Services may have parameters of any meaning.
func Mask(rawQuery string) string {
	var b strings.Builder
	for part := range strings.SplitAfterSeq(rawQuery, "&") {
		for pair := range strings.SplitAfterSeq(part, ";") { // some servers treat it like an ampersand
			name, rest, _ := strings.Cut(pair, "=")
			plain, _ := url.QueryUnescape(name) // nothing if it has a bad escape
			if value := strings.TrimRight(rest, "&;"); value != "" && secret(strings.ToLower(cmp.Or(plain, name))) {
				pair = name + "=MASKED" + rest[len(value):]
			}
			b.WriteString(pair)
		}
	}
	return b.String()
}

// secret reports whether a name in lower case suggests a secret: those of Kubernetes, OAuth 2 and object stores' URLs.
func secret(name string) bool {
	words := []string{
		"token", "passw", "secret", "credential", "authorization", "bearer",
		"signature", "apikey", "api_key", "api-key", "assertion", "jwt",
	}
	return name == "sig" || name == "code" || name == "key" ||
		slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
}
