// Package hold bounds the bytes that wait in the process for all connections: input, output and bodies.
package hold

import (
	"log/slog"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	fraction = 4                // the part of the memory for connections: caches and garbage need the rest
	assumed  = 2 << 30          // the memory of a process that has no memory limit
	logEvery = 10 * time.Second // the shortest time between two log messages about refusals
	// shares is how many holders could fill the memory that is left: a holder of more than one share has to wait. One
	// is stopped at a fifth of the limit, ten at a fourteenth each: there is always room for those that hold little.
	shares = 4
	// Least is what every connection may hold, whatever others hold: half of one write to a connection.
	Least = 64 << 10
)

// Bound is the memory bound of the process. It is safe for concurrent use.
type Bound struct {
	limit    int64
	held     atomic.Int64
	promised atomic.Int64 // windows granted to peers beyond each stream's initial one
	refused  [refusals]atomic.Int64
	logged   atomic.Int64              // refusals that were logged
	loggedAt atomic.Pointer[time.Time] // when they were logged; nil means never

	mu      sync.Mutex         // guards sources
	sources map[string]*Source // :: key → that of open connections
}

// Refusal is what was refused because too much memory is held.
type Refusal uint8

// The kinds of refusal.
const (
	Stream     Refusal = iota // a request was refused on a connection that holds more than a share
	Connection                // the largest holder's connection was closed
	Body                      // a body was not kept for a retry
	Head                      // a head over HTTP/1.1 got no room in its time
	refusals
)

// New returns a bound of limit bytes. Zero means a quarter of the process's memory limit, or of 2 GiB without one.
func New(limit int64) *Bound {
	if limit <= 0 {
		if limit = debug.SetMemoryLimit(-1); limit == math.MaxInt64 { // GOMEMLIMIT, or set from the container's
			limit = assumed
		}
		limit /= fraction
	}
	return &Bound{limit: limit, sources: make(map[string]*Source)}
}

// Add counts n more bytes that are already held; n may be negative.
func (b *Bound) Add(n int64) { b.held.Add(n) }

// Hold asks for n bytes of a kind. It reports false, and counts nothing, if n is more than a share. Add returns them.
func (b *Bound) Hold(n int64, what Refusal) bool {
	if n > b.Share() {
		b.Refuse(what)
		return false
	}
	b.held.Add(n)
	return true
}

// Share returns what one holder may hold now. It shrinks as others hold more, so the largest stop first.
func (b *Bound) Share() int64 { return max(Least, (b.limit-b.held.Load())/shares) }

// Short returns what the heads of a connection may hold without asking: Least while half of the
// limit is left, then an ordinary head, so that no number of short ones fills what others need.
func (b *Bound) Short() int64 {
	if b.Share() < b.Room()/2 {
		return Least / 4
	}
	return Least
}

// Held returns how many bytes are held.
func (b *Bound) Held() int64 { return b.held.Load() }

// Limit returns the limit.
func (b *Bound) Limit() int64 { return b.limit }

// Over returns by how many bytes the limit is exceeded; zero means that it is not.
func (b *Bound) Over() int64 { return max(0, b.held.Load()-b.limit) }

// Room returns the most that one connection's peer may be promised. All promises are at most half of the limit.
func (b *Bound) Room() int64 { return b.limit / shares }

// Promise reserves n more bytes of windows for peers, if as much remains for what they send. It grants any negative n.
func (b *Bound) Promise(n int64) bool {
	if n > 0 && (b.held.Load() > b.limit/2 || b.promised.Load()+n > b.limit/2) {
		return false
	}
	b.promised.Add(n)
	return true
}

// Refuse counts a refusal.
func (b *Bound) Refuse(what Refusal) { b.refused[what].Add(1) }

// Log logs refusals that happened since its last message, at most every ten seconds.
func (b *Bound) Log(log *slog.Logger) {
	n := int64(0)
	for i := range b.refused {
		n += b.refused[i].Load()
	}
	logged, at, now := b.logged.Load(), b.loggedAt.Load(), time.Now()
	if n == logged || at != nil && now.Sub(*at) < logEvery || !b.loggedAt.CompareAndSwap(at, &now) {
		return
	}
	b.logged.Store(n)
	log.Warn("connections hold too much memory: the largest holders have to wait or are closed",
		"held", b.held.Load(), "limit", b.limit, "refused", n-logged)
}

// Metrics returns the metrics of the bytes held, the limit and the refusals.
func (b *Bound) Metrics() []prometheus.Collector {
	all := []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_memory_held_bytes",
			Help: "Bytes held for connections: input, output, heads and bodies that wait.",
		}, func() float64 { return float64(b.held.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_memory_limit_bytes",
			Help: "Limit of fairlead_memory_held_bytes: a quarter of the memory limit.",
		}, func() float64 { return float64(b.limit) }),
	}
	for what, label := range [refusals]string{"stream", "connection", "body", "head"} {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "fairlead_memory_refused_total", ConstLabels: prometheus.Labels{"what": label},
			Help: "Refusals because too much memory is held: stream (a request on a connection that holds much), " +
				"connection (the largest was closed, or one over HTTP/1.1 was refused), " +
				"body (not kept for a retry), head (over HTTP/1.1, without room in its time).",
		}, func() float64 { return float64(b.refused[what].Load()) }))
	}
	return all
}

// Source counts what the heads of one client address hold, over all its connections, so that no
// address holds more than a share of what is left. Their owner counts the bytes in the Bound, too.
type Source struct {
	b     *Bound
	key   string
	conns int // guarded by b.mu
	held  atomic.Int64
}

// Source returns the source of a new connection, which must call Leave when it ends.
func (b *Bound) Source(key string) *Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sources[key]
	if s == nil {
		s = &Source{b: b, key: key}
		b.sources[key] = s
	}
	s.conns++
	return s
}

// Leave ends a connection's part. A nil Source counts nothing.
func (s *Source) Leave() {
	if s == nil {
		return
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.conns--; s.conns == 0 {
		delete(s.b.sources, s.key)
	}
}

// Add counts n more bytes, or fewer if n is negative.
func (s *Source) Add(n int64) {
	if s != nil {
		s.held.Add(n)
	}
}

// Greedy reports whether the source holds more than its share.
func (s *Source) Greedy() bool { return s != nil && s.held.Load() > s.b.Share() }

// Take asks for n more bytes for a connection that holds held, and counts them in the Bound, too. A connection gets a
// quarter of its address's share, because all strangers behind a load balancer have one address.
func (s *Source) Take(n, held int64) bool {
	if share := s.b.Share(); held+n > max(Least/2, share/shares) || s.held.Load()+n > share {
		return false
	}
	s.Give(-n)
	return true
}

// Give returns n bytes that Take has counted; a negative n is counted without asking.
func (s *Source) Give(n int64) {
	s.held.Add(-n)
	s.b.Add(-n)
}
