// Package engine forwards HTTP/2 as a pure state machine: streams, flow control, the choice of connections, retries,
// timers. It never performs I/O, starts a goroutine, waits or reads a clock: its driver does (package h2), see Config.
//
//	bytes ─► Feed ─► Config.Decide ─► a Plan for each stream ─► Collect ─► bytes to write, connections to close
//	time ──► Tick, Advance            Config.Dial for backends   RunCalls: callbacks, without the mutex
//
// Nothing in an Engine is safe for concurrent use: the driver's mutex guards it all, unless a comment says otherwise.
package engine

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/spare"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// limits are the bounds of an engine. Tests lower them.
type limits struct {
	backendWindow int32  // the window of a backend's connection
	writeLimit    int    // output of a connection beyond which DATA waits in its stream
	backlogLimit  int    // output beyond which a connection gets no new streams
	maxStreamID   uint32 // a connection that reaches it is replaced (§5.1.1)
	maxConns      int    // to one endpoint: at 250 streams each, far beyond other limits
}

const (
	replay      = 256 << 10        // body bytes kept for a retry
	headTime    = 10 * time.Second // a client's preface, first SETTINGS or field block must be complete within it
	clientIdle  = 3 * time.Minute  // a client's connection without streams is closed after it
	backendIdle = 90 * time.Second // a backend's is after it, as in http.DefaultTransport
	drainTime   = 10 * time.Second // how long an upload is read after its response is complete
	stallTime   = 30 * time.Second // how long a backend may accept none of our output, or a client that has left
	// goneTime is how long one may be silent for TCP, too: two of its questions, 2 min apart, are unanswered.
	goneTime   = 5 * time.Minute
	lingerTime = time.Second      // how long a peer to which all was sent may keep a closed connection open
	waitTime   = 30 * time.Second // how long a request waits for room: kube-apiserver's aggregator's dial timeout
	// streamWindow is what a direction of a stream may hold: kube-apiserver's. 1 MiB was no faster, 64 KiB 15 % slower.
	streamWindow int32 = 256 << 10
	clientWindow int32 = 1 << 20 // of a client's connection
	// keyBytes in one direction have a connection replaced: AES-GCM's keys are good for 388 GB (RFC 8446 §5.5), and
	// crypto/tls never changes them. From 2^38 bytes on keyGrace is left at 15 Gbit/s, in which usual requests end.
	keyBytes = 1 << 38
	keyGrace = time.Minute // then its long-running streams end
	// maxHeader is the largest field list, and encoded block, as in kube-apiserver: users may have thousands of groups.
	maxHeader = 1 << 20
	// guestBuffer is how much of a guest's body is queued before its caller waits, and the most that Take returns. More
	// trailers than guestTrailers are dropped (RFC 9110 §6.5.1): over HTTP/1.1, net/http's clients read 4 KiB of them.
	guestBuffer, guestTrailers = 64 << 10, 8 << 10
)

// Engine is the state of one shard: clients' connections, and those to backends to forward their streams.
type Engine struct {
	Config
	lim          limits
	now          time.Duration // never 0: in a stream, 0 means "not yet"
	conns        []*Conn
	pools        map[*Endpoint][]*pool
	debts        map[string]time.Duration // of owners, see charge: when each will be zero
	exiled       time.Duration            // until when some owner is above exileAfter
	draining     bool                     // every client gets GOAWAY
	cutFrom      time.Duration            // when the first long-running streams end
	cutAt        time.Duration            // when all have
	awayAt       time.Duration            // when SendAway was last called; 0 means never
	awayFrom     time.Duration            // when the present series of SendAway calls began
	ticked       time.Duration            // the time of the driver's last tick; 0 means none yet
	shortTimeout bool                     // a backend with streams has a shorter ping timeout than the default
	held         int64                    // bytes in queues, and in connections as last counted
	reported     int64                    // the part of held that Memory counts
	lookAt       int64                    // shed looks for large holders when so much is held
	wheel        wheel
	awaitDial    list     // streams that wait until some endpoint can be dialled
	guests       list     // streams without a client's connection
	Count        Counters // metrics

	writing *Conn // its output ends with an unfinished frame if the engine panics now

	// Work for the driver, to be done without the mutex.
	dirty []*Conn // connections with output, or to be closed
	calls []call

	fields wire.FieldSection // the last decoded section
	head   wire.Head         // the request being decided

	date   []hpack.HeaderField // see dated
	dateOf time.Duration       // the second in which date was made

	spares
	buffers spare.Buffers
	work    activity
}

type spares struct {
	block    []byte // the largest buffer of a field block that is free, at most maxHeader
	streams  []*stream
	chunks   []*chunk
	sendings []*sending
}

// activity counts frames on streams: PINGs come on every connection.
type activity struct {
	frames int           // in the present period
	since  time.Duration // when the period began
	quiet  bool          // the previous period had at most few frames
}

const (
	// restAfter is how long a shard is quiet before it drops its free lists (10 MiB): quiet watches need none.
	restAfter = 4 * time.Second
	// few is what an idle process always has: an event on some watch, and own requests, such as renewing a lease.
	few = 100
)

// Rests reports whether there is too little work to keep free lists.
func (e *Engine) Rests() bool { return e.work.quiet && e.work.frames <= few }

// call is a callback that runs without the mutex.
type call struct {
	do      func()
	done    func(Outcome)
	outcome Outcome
	guest   *Guest // whose direction dir is woken, or which has ended
	dir     dir
	over    bool
}

// Config is what an engine needs from its driver, a shard of package h2 (newShard), which calls it under one mutex.
type Config struct {
	// Decide returns the plan for a request of the client that c.Value identifies. False means that
	// there is no plan yet: resume is called once, later, without the mutex.
	Decide func(c *Conn, h *wire.Head, resume func(Plan)) (Plan, bool)
	Resume func(apply func()) // runs, without the mutex, when resume is called. It has apply called under the mutex
	// Serve prepares a handler's answer; run, called without the mutex, starts the handler.
	Serve func(c *Conn, h *wire.Head, handler http.Handler) (l *Local, run func())
	// Dial begins to connect to an endpoint. It is called without the mutex. It reports the result
	// to dialled under the mutex; without an error, dialled returns the engine's connection.
	Dial func(ep *Endpoint, dialled func(error) *Conn)
	// Caught reports a panic that the engine survived; it is called without the mutex. Nil: panics are not caught.
	Caught func(v any, stack []byte)
	// Taken returns how many bytes the peer has acknowledged, and whether all others that were written are on their way
	// to it; zero and true mean unknown. Silence is how long its kernel has acknowledged nothing, not even a question.
	Taken func(c *Conn) (n uint64, sent bool, silence time.Duration)
	// Unread reports whether unread input waits in the socket: then this process was slow, not the
	// peer. It is only called before a peer is given up, because it is a system call.
	Unread func(c *Conn) bool
	Clock  func() time.Time // returns the time for Date fields. It is called once a second

	Memory     *hold.Bound // bounds what all connections of the process hold
	MaxStreams uint32      // per client connection; 0 means 250
}

// New returns an engine for the driver that cfg describes.
func New(cfg Config) *Engine {
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 250) // kube-apiserver's --http2-max-streams-per-connection
	return &Engine{
		Config:  cfg,
		now:     1,
		cutFrom: never,
		cutAt:   never,
		pools:   map[*Endpoint][]*pool{},
		debts:   map[string]time.Duration{},
		fields:  wire.FieldSection{Max: maxHeader},
		lim: limits{
			backendWindow: 1 << 30, // Go's: it is refilled on receipt, because the streams' windows are the bound
			writeLimit:    128 << 10,
			backlogLimit:  1 << 20,
			maxStreamID:   topStreamID,
			maxConns:      1024,
		},
	}
}

// Advance sets the time, once per batch of frames. It never goes back.
func (e *Engine) Advance(now time.Duration) { e.now = max(e.now, now) }

// callLater has the driver call f without the mutex, see RunCalls.
func (e *Engine) callLater(f func()) { e.calls = append(e.calls, call{do: f}) }

func (e *Engine) dropSpares() {
	e.spares = spares{}
	e.buffers.Drop()
}

// remove forgets a connection that the driver has closed.
func (e *Engine) remove(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	e.Count.Conns[c.side].Add(-1)
	last := len(e.conns) - 1
	e.conns[c.at], e.conns[last].at = e.conns[last], c.at
	e.conns = slices.Delete(e.conns, last, last+1)
	e.buffers.Put(c.out)
	c.out, c.Sealed = nil, 0
	c.weigh()
	c.Source.Add(int64(-c.shared))
	c.Source.Leave()
	c.Source, c.shared = nil, 0
}

// AcceptClient adds a client's new connection. Our SETTINGS are sent first: they need not wait for the client's (§3.4).
func (e *Engine) AcceptClient() *Conn {
	c := e.newConn(up)
	c.writeSettings()
	if e.draining {
		e.drainConn(c)
	}
	return c
}

// close ends all streams of a connection. The driver closes it when its output is written.
func (e *Engine) close(c *Conn, err error) {
	if c.closing {
		return
	}
	c.closing, c.closingAt, c.orderly = true, e.now, err == nil
	c.in, c.left, c.data, c.dec = nil, 0, dataFrame{}, nil // a decoder keeps a block that was cut short
	e.freeBlock(c)
	if c.pool != nil {
		c.pool.drop(c, err) // before its streams look for another connection
	}
	for s := range c.ordered(all) {
		e.orphan(c, s, err)
	}
	c.touch()
}

// orphan ends a stream's part on a connection that is being closed.
func (e *Engine) orphan(c *Conn, s *stream, err error) {
	defer func() { // the others must still be ended
		if v := recover(); v != nil {
			e.recovered(nil, v)
			s.dropStream()
		}
	}()
	s.unlinkLeg(c.side)
	if c.side == up {
		s.abort(cmp.Or(c.why, ReasonClientLost), err, http2.ErrCodeCancel)
	} else {
		e.backendGone(c, s, err)
	}
}

// lose handles a broken connection.
func (e *Engine) lose(c *Conn, err error) {
	defer e.rescue(c)
	if c.pool != nil && !c.closing && (!c.drained || len(c.streams) > 0) {
		c.pool.ep.Failed(err, len(c.streams) == 0)
		e.failedSharers(c, err)
	}
	e.close(c, err)
	e.buffers.Put(c.out)
	c.out, c.tailID = nil, 0
	c.weigh()
}

func (e *Engine) cutOff(c *Conn, err error) {
	c.cut = true
	e.lose(c, err)
	c.touch()
}

// CutAll ends all guests' streams and closes all connections at once. What a backend loses would be sent again.
func (e *Engine) CutAll(err error) {
	for n := e.guests.n; n > 0 && e.guests.first != nil; n-- {
		e.guests.first.s.abort(ReasonDrain, err, http2.ErrCodeCancel)
	}
	clientsFirst := func(a, b *Conn) int { return cmp.Compare(a.side, b.side) }
	for _, c := range slices.SortedStableFunc(slices.Values(e.conns), clientsFirst) {
		c.why = ReasonDrain
		e.cutOff(c, err)
	}
}

// Ended must be called when the driver has closed a connection.
func (e *Engine) Ended(c *Conn, err error) {
	if !c.cut && !c.closing && !c.drained && c.askedAt > 0 && e.now-c.askedAt < offence {
		ep := c.pool.ep
		gap := e.now - time.Duration(ep.offendedAt.Swap(int64(e.now)))
		if gap > 60*time.Minute && ep.offended.Load() < tooOften {
			ep.offended.Store(0) // so seldom it is chance: Tomcat does so after minutes
		}
		if gap >= TickEvery { // a kill ends all
			ep.offended.Add(1)
		}
	}
	c.cut = true
	e.lose(c, err)
	e.remove(c)
}

// drainConn asks a client to open no more streams. Those that it opens before it answers PING count (RFC 9113 §6.8).
func (e *Engine) drainConn(c *Conn) {
	if c.side != up || c.goAway != goAwayNone || c.closing {
		return
	}
	c.goAway = goAwaySoon
	c.goAwayAt = e.now
	c.writeGoAway(topStreamID, http2.ErrCodeNo, "")
	c.writePing(0, []byte(drainPing))
}

const (
	awayGap = 4 * TickEvery // ends a series of SendAway calls: a caller in a series calls every 250 ms
	// awayRefuses is how long it then refuses requests that could reach no backend. Load balancers notice within
	// seconds, and a Go client repeats it after 0, 1 and 2 s. Later ones get the error: there may be no other replica.
	awayRefuses    = 5 * time.Second
	roomIdle       = 5 * time.Second // how long a client is idle before it makes room: it may be between two requests
	sentAwayAtOnce = 64              // bounds how long the mutex is held: two frames and a write take some 10 µs
	drainPing      = "farewell"      // the content of the PING that follows the first GOAWAY
)

// refuses reports whether to reset a request that reached no backend with REFUSED_STREAM, because its client is sent
// away. The client then knows that nothing was processed, and repeats it elsewhere (RFC 9113 §8.7), unlike after a 503.
func (s *stream) refuses() bool {
	c := s.leg[up]
	away := s.e.awayAt > 0 && s.e.now-s.e.awayAt <= awayGap && s.e.now-s.e.awayFrom < awayRefuses
	return away && s.sent == 0 && c != nil && c.goAway != goAwayNone
}

// sendAway sends some of those clients away, and reports whether there are more.
func (e *Engine) sendAway(those func(*Conn) bool) (more bool) {
	n := 0
	for _, c := range e.conns {
		if c.side != up || c.goAway != goAwayNone || c.closing || !those(c) {
			continue
		}
		if n++; n > sentAwayAtOnce {
			return true
		}
		e.drainConn(c)
	}
	return false
}

// SendAway sends GOAWAY to clients that have sent requests, a few at a time. It reports whether there are more.
func (e *Engine) SendAway() (more bool) {
	if e.now-e.awayAt > awayGap || e.awayAt == 0 {
		e.awayFrom = e.now
	}
	e.awayAt = e.now
	return e.sendAway(func(c *Conn) bool { return c.maxID != 0 })
}

// MakeRoom sends away some idle clients, of an address or, of nil, any: others wait for a place. A caller repeats it.
func (e *Engine) MakeRoom(of *hold.Source) {
	idle := func(c *Conn) bool { return len(c.streams) == 0 && e.now-c.idleSince > roomIdle }
	e.sendAway(func(c *Conn) bool { return (of == nil || c.Source == of) && idle(c) })
}

// finalGoAway tells the client which streams are handled. After them the connection is closed.
func (e *Engine) finalGoAway(c *Conn) {
	c.goAway = goAwayFinal
	c.writeGoAway(c.maxID, http2.ErrCodeNo, "")
	e.closeIfDone(c)
}

// closeIfDone closes a connection that has no streams and accepts none.
func (e *Engine) closeIfDone(c *Conn) {
	if len(c.streams) == 0 && (c.goAway == goAwayFinal || c.drained) {
		e.close(c, nil)
	}
}

// EndLongRunning ends long-running streams in the second half of grace, also later ones: not all clients begin others
// at once. Of several calls the earliest end counts.
func (e *Engine) EndLongRunning(grace time.Duration) {
	e.cutFrom, e.cutAt = min(e.cutFrom, e.now+grace/2), min(e.cutAt, e.now+grace)
}

// endsAt returns when a long-running stream ends: its time and id, hashed, say when within cutFrom and cutAt.
func (s *stream) endsAt() time.Duration {
	part := (uint64(s.started) + uint64(s.id[up])) * 0x9e3779b97f4a7c15 >> 48 // of 1<<16
	return s.e.cutFrom + (s.e.cutAt-s.e.cutFrom)>>16*time.Duration(part)
}

// Drain begins the shutdown: every client gets GOAWAY, and long-running streams end within grace.
func (e *Engine) Drain(grace time.Duration) {
	defer e.rescue(nil)
	e.draining = true
	e.EndLongRunning(grace)
	for _, c := range slices.Clone(e.conns) {
		e.drainConn(c)
	}
}
