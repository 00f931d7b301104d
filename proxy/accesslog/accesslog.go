// Package accesslog writes one line of JSON per request without making requests wait: a line is encoded by hand into a
// buffer, which does not allocate, and one goroutine (Run) writes the buffers, many lines in one system call.
//
// The concurrency rule: a line is added under its stripe's mutex, never during I/O. Connections are spread over the
// stripes, so that no lock is shared by all. Lines of different stripes may change their order; each has its time.
//
// The buffers are bounded. If the writer is too slow, lines are dropped and counted: requests do not wait for the log.
package accesslog

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// Config configures a Log (makeAccessLog in cmd/fairlead).
type Config struct {
	Writer io.Writer // gets whole lines, only from Run. Required
	// Skip is the fraction of requests, from 0 to 1, without a line. Responses with 400 or more always have one.
	Skip         float64
	metric.Sinks // the loss of lines
}

// Log is an access log. Add is safe for concurrent use. Lines are written while Run runs and ends.
type Log struct {
	cfg     Config
	stripes [stripes]stripe
	// wake tells Run of a line, full of a stripe that should be written soon. None is closed.
	wake, full chan struct{}
	lost       atomic.Int64
	logged     int64     // of lost; used by Run only
	next       time.Time // when losses may be logged again
}

const (
	stripes         = 16          // enough that cores rarely wait for each other: each is locked for about 200 ns
	soon            = 64 << 10    // the size at which a stripe is written before gather ends: more is no cheaper each
	lossLogInterval = time.Minute // the least time between two logs of losses
	// gather is how long lines are gathered: short for who follows the file, and thousands share a system call.
	gather = 50 * time.Millisecond
	// maxStripe is the size at which a stripe drops lines: about four thousand lines, a tenth of a
	// second of the busiest connection measured, and 16 MiB in all stripes.
	maxStripe = 1 << 20
	// maxText limits a text: none in Kubernetes is longer, and a megabyte of a stranger's, escaped, would be six.
	maxText = 8 << 10
)

type stripe struct {
	mu    sync.Mutex // guards buf
	buf   []byte
	spare []byte // used by Run only: swapped with buf
}

// New returns a Log.
func New(cfg Config) *Log {
	cfg.Logger = cfg.Log()
	l := &Log{cfg: cfg, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	metric.Register(cfg.Metrics, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "fairlead_access_log_lost_total",
		Help: "Lines of the access log that were lost, because it could not be written, or not fast enough.",
	}, func() float64 { return float64(l.lost.Load()) }))
	return l
}

// Wants reports whether a request with this status gets a line. Each call samples anew.
func (l *Log) Wants(status int) bool {
	return l.cfg.Skip == 0 || status >= http.StatusBadRequest ||
		rand.Float64() >= l.cfg.Skip //nolint:gosec // a sample, not a secret
}

// Add adds a line. Lines with the same key, preferably a connection's number, are written in order.
func (l *Log) Add(key uint32, line *Line) {
	s := &l.stripes[key%stripes]
	s.mu.Lock()
	before := len(s.buf)
	if before >= maxStripe {
		s.mu.Unlock()
		l.lost.Add(1)
		return
	}
	s.buf = line.append(s.buf)
	after := len(s.buf)
	s.mu.Unlock()
	switch {
	case before == 0:
		latest.Wake(l.wake)
	case before < soon && after >= soon:
		latest.Wake(l.full)
	}
}

// Run writes lines until ctx ends, and then the remaining ones.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			l.flush()
			return ctx.Err()
		case <-l.wake:
		}
		select {
		case <-ctx.Done():
		case <-time.After(gather):
		case <-l.full:
		}
		l.flush()
	}
}

func (l *Log) flush() {
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		p := s.buf
		s.buf = s.spare[:0]
		s.mu.Unlock()
		if len(p) > 0 {
			if n, err := l.cfg.Writer.Write(p); err != nil {
				l.lost.Add(int64(bytes.Count(p[min(n, len(p)):], []byte("\n"))))
			}
		}
		if s.spare = p; cap(p) > 2*soon {
			s.spare = nil // grown in a burst that may be over
		}
	}
	if lost := l.lost.Load(); lost > l.logged && time.Now().After(l.next) {
		l.cfg.Logger.Warn("access log lost lines", "lines", lost-l.logged)
		l.logged, l.next = lost, time.Now().Add(lossLogInterval)
	}
}

// Line is the access log's data of a request. Empty and zero fields are left out, except Method,
// Path, Verb, Status, Sent and Duration. Times are in nanoseconds.
type Line struct {
	Method, Path string // as received, and cut above maxText, without the query, which can hold secrets
	Verb         string // Kubernetes' verb
	// Outcome is how the request ended. Status is 499 if the client left before a response; -1 Retries: unknown.
	engine.Outcome
	End                string    // how the request ended: complete, refused here, or why it was aborted
	Cause              string    // the error of a backend that made it end so
	Ended              time.Time // when the request ended
	Proto, TLS         string    // the client's protocol, and its TLS version
	From, Agent        string    // the client's address, without port, and its User-Agent, or the beginning of it
	User, Impersonator string    // the effective user, and the user that impersonates it
	APIService         string    // the APIService of the path
	Rule, DryRun       string    // the policy's rule that matched, and the one that would have refused the request
	AuditID            string    // the Audit-ID, as in the audit logs of kube-apiserver and of extension servers
}

func (l *Line) append(b []byte) []byte {
	b = moment(append(b, `{"time":"`...), l.Ended)
	b = append(b, `","level":"INFO","msg":"request"`...) // as in all other lines of this process
	b = field(b, `,"method":`, l.Method)
	b = field(b, `,"path":`, l.Path)
	b = field(b, `,"verb":`, l.Verb)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(l.Status), 10)
	b = strconv.AppendInt(append(b, `,"bytes":`...), l.Sent, 10)
	b = number(b, `,"in":`, l.Received)
	b = number(b, `,"waited":`, int64(l.Placed))
	b = number(b, `,"first":`, int64(l.Wait))
	b = strconv.AppendInt(append(b, `,"took":`...), int64(l.Duration), 10)
	b = optional(b, `,"end":`, l.End)
	b = optional(b, `,"cause":`, l.Cause)
	if l.Endpoint != nil {
		b = optional(b, `,"endpoint":`, l.Endpoint.Name)
		b = number(b, `,"tries":`, int64(l.Retries+1))
	}
	if l.New {
		b = append(b, `,"new":true`...)
	}
	b = optional(b, `,"proto":`, l.Proto)
	b = optional(b, `,"tls":`, l.TLS)
	b = optional(b, `,"from":`, l.From)
	b = optional(b, `,"agent":`, l.Agent)
	b = optional(b, `,"user":`, l.User)
	b = optional(b, `,"impersonator":`, l.Impersonator)
	b = optional(b, `,"apiservice":`, l.APIService)
	b = optional(b, `,"rule":`, l.Rule)
	b = optional(b, `,"dryrun":`, l.DryRun)
	b = optional(b, `,"audit":`, l.AuditID)
	return append(b, '}', '\n')
}

func number(b []byte, name string, value int64) []byte {
	if value == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), value, 10)
}

func optional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return field(b, name, value)
}

// field appends a name, which needs no escaping, and the beginning of a value. Clients' values rarely need escaping;
// others are escaped, so that no client can forge lines.
func field(b []byte, name, value string) []byte {
	b, value = append(append(b, name...), '"'), value[:min(len(value), maxText)]
	for i := range len(value) {
		if c := value[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return append(escape(append(b, value[:i]...), value[i:]), '"')
		}
	}
	return append(append(b, value...), '"')
}

func escape(b []byte, s string) []byte {
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case !unicode.IsGraphic(r) || r == utf8.RuneError: // also of an invalid byte
			b = printable.Append(b, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// moment appends a time in RFC 3339 with milliseconds, as log/slog does. Only RFC3339, without them, is fast.
func moment(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339)
	n := len(b) - 1 // where the Z is
	b = strconv.AppendInt(b[:n], 1000+int64(t.Nanosecond())/int64(time.Millisecond), 10)
	b[n] = '.' // the 1 of 1000 has kept the zeros
	return append(b, 'Z')
}
