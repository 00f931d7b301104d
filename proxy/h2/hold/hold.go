// Package hold bounds the bytes that all connections of the process hold: input, output and bodies
// that wait.
package hold

import (
	"log/slog"
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// part is how much of the memory may be held for connections: caches, TLS and garbage need the
	// rest.
	part = 4
	// assumed is the memory of a process that nothing limits.
	assumed = 2 << 30
	// shares is how many holders could fill what is left: whoever holds more than one share has to
	// wait. A single holder is stopped at a fifth of the limit, ten at a fourteenth each, and so
	// there is always room for those who hold little.
	shares = 4
	// Least is what everybody may hold, whatever others do: half of what is written to a connection
	// at once.
	Least = 64 << 10
	// logEvery is how often the log says that something was refused.
	logEvery = 10 * time.Second
)

// Bound is the process's one bound. It is safe for concurrent use.
type Bound struct {
	limit    int64
	held     atomic.Int64
	promised atomic.Int64 // what peers may send beyond the windows that every stream has
	refused  [refusals]atomic.Int64
	told     atomic.Int64 // refusals that the log knows of
	toldAt   atomic.Int64 // when it was told, in nanoseconds since the epoch
}

// Refusal is what somebody did not get because too much is held.
type Refusal uint8

// The refusals.
const (
	Stream     Refusal = iota // a request was refused on a connection that holds more than a share
	Connection                // the largest holder was closed
	Body                      // a body was not kept for a retry
	refusals
)

// String is the metric's label.
func (r Refusal) String() string { return [refusals]string{"stream", "connection", "body"}[r] }

// New returns a bound of limit bytes; 0: a quarter of the memory that the process may use, or of 2
// GiB if nothing says how much that is.
func New(limit int64) *Bound {
	if limit <= 0 {
		limit = available() / part
	}
	return &Bound{limit: limit}
}

// available is Go's memory limit: GOMEMLIMIT, or what the process has made of its container's.
func available() int64 {
	if n := debug.SetMemoryLimit(-1); n != math.MaxInt64 {
		return n
	}
	return assumed
}

// Add counts n bytes more that are held already; n may be negative.
func (b *Bound) Add(n int64) { b.held.Add(n) }

// Hold asks for n bytes. It reports false, and counts nothing, if they are more than a share. A
// negative n gives back and is always granted.
func (b *Bound) Hold(n int64) bool {
	if n > 0 && n > b.Share() {
		b.Refuse(Body)
		return false
	}
	b.held.Add(n)
	return true
}

// Share is what one holder may hold now. It shrinks as others hold more, so that the largest are
// stopped first.
func (b *Bound) Share() int64 { return max(Least, (b.limit-b.held.Load())/shares) }

// Over is by how much the limit is exceeded; 0: it is not.
func (b *Bound) Over() int64 { return max(0, b.held.Load()-b.limit) }

// Room is what one connection's peer may be promised at most. All promises together are at most
// half of the limit, so that they can be kept.
func (b *Bound) Room() int64 { return b.limit / shares }

// Promise allows n bytes more to peers, if that leaves as much for what they do send. A negative n
// takes back and is always granted.
func (b *Bound) Promise(n int64) bool {
	if n > 0 && (b.held.Load() > b.limit/2 || b.promised.Load()+n > b.limit/2) {
		return false
	}
	b.promised.Add(n)
	return true
}

// Refuse counts a refusal.
func (b *Bound) Refuse(what Refusal) { b.refused[what].Add(1) }

// Log says that something was refused since it said so last, at most every ten seconds.
func (b *Bound) Log(log *slog.Logger) {
	n := int64(0)
	for i := range b.refused {
		n += b.refused[i].Load()
	}
	told, at, now := b.told.Load(), b.toldAt.Load(), time.Now().UnixNano()
	if n == told || now-at < int64(logEvery) || !b.toldAt.CompareAndSwap(at, now) {
		return
	}
	b.told.Store(n)
	log.Warn("connections hold too much memory: the largest holders have to wait or are closed", "held", b.held.Load(), "limit", b.limit, "refused", n-told)
}

// descs are of what is held, the limit, and refusals.
func descs() [3]*prometheus.Desc {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_memory_"+name, help, labels, nil)
	}
	return [...]*prometheus.Desc{
		desc("held_bytes", "Bytes held for connections: input, output and bodies that wait."),
		desc("limit_bytes", "What may be held for connections: a quarter of the memory limit."),
		desc("refused_total", "What was refused because too much is held: stream (on a connection that holds much), connection (the largest was closed), body (not kept for a retry).", "what"),
	}
}

// Describe implements prometheus.Collector.
func (b *Bound) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descs() {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (b *Bound) Collect(to chan<- prometheus.Metric) {
	d := descs()
	to <- prometheus.MustNewConstMetric(d[0], prometheus.GaugeValue, float64(b.held.Load()))
	to <- prometheus.MustNewConstMetric(d[1], prometheus.GaugeValue, float64(b.limit))
	for what := range refusals {
		to <- prometheus.MustNewConstMetric(d[2], prometheus.CounterValue, float64(b.refused[what].Load()), what.String())
	}
}
