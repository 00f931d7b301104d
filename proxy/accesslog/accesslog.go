// Package accesslog writes one line of JSON per request without making requests wait: a line is
// encoded by hand into a buffer, which does not allocate, and one goroutine (Run) writes the
// buffers, many lines in one system call.
//
// The concurrency rule: a line is added under the mutex of its stripe, never during I/O.
// Connections are spread over the stripes, so that no lock is shared by all. Lines of different
// stripes may be written in another order than they were added; each has its time.
//
// The buffers are bounded. If the writer is slower than the requests, lines are dropped and
// counted: the log must not take the front door down.
package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// Config configures a Log.
type Config struct {
	// Writer gets whole lines, only from Run. Required.
	Writer io.Writer
	// Skip is the fraction of requests, from 0 to 1, without a line; responses with 400 or more
	// always have one. Zero means that every request has a line.
	Skip float64
	// Logger logs the loss of lines. Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_access_log_lost_total. Nil means unregistered.
	Metrics prometheus.Registerer
}

// Log is an access log. Add is safe for concurrent use. Lines are written while Run runs and ends.
type Log struct {
	cfg     Config
	log     *slog.Logger
	stripes [stripes]stripe
	// wake signals that there is a line, full that a stripe should be written soon. None is closed.
	wake, full chan struct{}
	lost       atomic.Int64
	logged     int64     // of lost; used by Run only
	next       time.Time // when losses may be logged again
}

const (
	// stripes is enough that cores rarely wait for each other: each is locked for about 200 ns.
	stripes = 16
	// soon is the size at which a stripe is written before gather ends: more is no cheaper each.
	soon = 64 << 10
	// maxStripe is the size at which a stripe drops lines: about four thousand lines, a tenth of a
	// second of the busiest connection measured, and 16 MiB in all stripes.
	maxStripe = 1 << 20
	// gather is how long lines are gathered: short for a human who follows the file, and thousands
	// of lines share a system call.
	gather = 50 * time.Millisecond
	// lossLogInterval is the least time between two logs of losses.
	lossLogInterval = time.Minute
)

type stripe struct {
	mu    sync.Mutex // guards buf and clock
	buf   []byte
	clock clock

	spare []byte // used by Run only: swapped with buf
}

// New returns a Log.
func New(cfg Config) (*Log, error) {
	l := &Log{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	lost := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "fairlead_access_log_lost_total", Help: "Lines of the access log that were lost, because it could not be written, or not fast enough.",
	}, func() float64 { return float64(l.lost.Load()) })
	return l, metric.Register(cfg.Metrics, "the access log", lost)
}

// Wants reports whether a request with this status gets a line. Each call samples anew.
func (l *Log) Wants(status int) bool {
	return l.cfg.Skip == 0 || status >= http.StatusBadRequest || rand.Float64() >= l.cfg.Skip //nolint:gosec // a sample, not a secret
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
	s.buf = line.append(s.buf, s.clock.at(line.Ended))
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
	timer := time.NewTimer(gather)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			l.flush()
			return ctx.Err()
		case <-l.wake:
		}
		timer.Reset(gather)
		select {
		case <-ctx.Done():
		case <-timer.C:
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
			l.write(p)
		}
		if cap(p) > 2*soon {
			p = nil // grown in a burst that may be over
		}
		s.spare = p
	}
	if lost := l.lost.Load(); lost > l.logged && time.Now().After(l.next) {
		l.log.Warn("access log lost lines", "lines", lost-l.logged)
		l.logged, l.next = lost, time.Now().Add(lossLogInterval)
	}
}

func (l *Log) write(p []byte) {
	n, err := l.cfg.Writer.Write(p)
	if err == nil {
		return
	}
	lost := int64(bytes.Count(p[min(n, len(p)):], []byte("\n")))
	if l.lost.Add(lost)-lost == l.logged {
		l.log.Error("writing access log", "err", err)
	}
}
