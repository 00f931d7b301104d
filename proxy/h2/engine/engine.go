// Package engine forwards HTTP/2 as a pure state machine: streams, credit, the choice of connections,
// retries and timers. Bytes of a connection go in (Engine.Feed), bytes for connections come out
// (Engine.Collect), and the time is handed in. It never performs I/O, starts a goroutine, waits or reads a
// clock: whoever drives it does (package h2), as Config says.
//
// Nothing of an Engine is safe for concurrent use: everything that is reachable from it is touched under
// one mutex of its driver's, unless it says otherwise.
package engine

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/spare"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// limits are the bounds of an engine. Tests lower them.
type limits struct {
	maxStreams    uint32 // per client's connection
	maxHeader     int    // bytes of a field list, as SETTINGS_MAX_HEADER_LIST_SIZE counts, and of an encoded block
	maxFrame      [2]int // what we accept from clients and from backends
	writeFrame    int    // what we send at most, whatever the peer accepts
	streamWindow  int32  // what one direction of a stream may hold here
	clientWindow  int32  // connection windows
	backendWindow int32
	writeLimit    int    // output of a connection beyond which DATA waits in its stream
	backlogLimit  int    // output beyond which nothing more is asked of a connection
	replay        int    // body bytes kept for a retry
	maxStreamID   uint32 // beyond it a connection is replaced (§5.1.1)

	head        time.Duration // a client's preface, first SETTINGS or field block must be complete
	idle        time.Duration // a client's connection without streams is closed
	ping        time.Duration // silence of a client with streams after which it is asked whether it is there
	pong        time.Duration // and has to answer
	backendIdle time.Duration // a backend's connection without streams is closed
	drain       time.Duration // how long an upload that nobody wants is read
	stall       time.Duration // how long a peer may take nothing of what we write
	keyBytes    int64         // each way on a connection, after which it is replaced
	keyGrace    time.Duration // and after which long-running streams on it are ended
	linger      time.Duration // how long a closed connection may still send before it is cut
	wait        time.Duration // how long a request waits for room on a backend's connection
}

func defaultLimits() limits {
	return limits{
		maxStreams:    250,                           // kube-apiserver's --http2-max-streams-per-connection
		maxHeader:     256 << 10,                     // tokens and impersonated groups stay well below; a connection can make us hold one of them
		maxFrame:      [2]int{minMaxFrame, 64 << 10}, // DATA is passed on as it comes, larger frames only save headers
		writeFrame:    64 << 10,
		streamWindow:  256 << 10, // kube-apiserver's; 1 MiB measured no faster, 64 KiB 15 % slower on 100 KiB lists
		clientWindow:  1 << 20,
		backendWindow: 1 << 30, // Go's: credit is given on receipt, and streams' windows are what counts
		writeLimit:    128 << 10,
		backlogLimit:  1 << 20,
		replay:        256 << 10,
		maxStreamID:   topStreamID,
		head:          10 * time.Second,
		idle:          3 * time.Minute,
		ping:          30 * time.Second, // as kube-apiserver and client-go
		pong:          15 * time.Second,
		backendIdle:   90 * time.Second, // http.DefaultTransport's
		drain:         10 * time.Second,
		stall:         30 * time.Second,
		linger:        time.Second,
		wait:          30 * time.Second, // what kube-apiserver's aggregator gives a dial
		// RFC 8446 §5.5: AES-GCM's keys are good for 2^24.5 full records, 388 GB, and crypto/tls never
		// changes them. From 2^38 bytes on a minute is left at 15 Gbit/s, and within a minute
		// everything ends that has the usual deadline.
		keyBytes: 1 << 38,
		keyGrace: time.Minute,
	}
}

// Engine is the state of one shard: connections of clients, and connections to backends that its streams are forwarded on.
type Engine struct {
	Config
	lim      limits
	now      time.Duration // never 0, which means "not yet" in a stream
	conns    []*Conn
	pools    map[*Endpoint]*pool
	going    bool          // draining: GOAWAY for everybody
	cutAt    time.Duration // when long-running streams are ended while draining; 0: never
	awayAt   time.Duration // when clients were last sent away; 0: never
	awayFrom time.Duration // and since when they are
	ticked   time.Duration // when the driver last said what time it is; 0: never
	brisk    bool          // a backend that has streams is to be given up sooner than by default
	held     int64         // bytes of queues, and of connections as they were weighed last
	reported int64         // what of held the bound knows of
	wheel    wheel
	idling   list     // streams that wait for any endpoint to come back
	guests   list     // streams without a client's connection
	Count    Counters // what there is and has been

	writing *Conn // a frame is being written to its output; a panic leaves it unfinished

	// What the driver has to do once the mutex is free.
	dirty []*Conn // have output, or want to be closed
	calls []call

	fields wire.FieldSection // decoded last
	head   wire.Head         // the request being decided

	date   []hpack.HeaderField // see dated
	dateOf time.Duration       // the second of now in which it was made

	spares
	buffers spare.Buffers
	work    activity
}

// spares are kept to be used again.
type spares struct {
	streams     *stream
	freeStreams int
	chunks      *chunk
	freeChunks  int
	sendings    []*sending
}

// activity counts frames of streams (pings come on every connection).
type activity struct {
	frames int           // since the period began
	since  time.Duration // when it began
	quiet  bool          // the one before had no more than few
}

const (
	// restAfter is how long it must be quiet until a shard gives up its spares, up to 7 MiB: what holds thousands of quiet watches needs none.
	restAfter = 4 * time.Second
	// few is what always comes: an event on some watch, and what Fairlead itself asks the local apiserver, such as to renew its lease.
	few = 100
)

func (a *activity) look(now time.Duration) {
	if now-a.since > restAfter {
		*a = activity{since: now, quiet: a.frames <= few}
	}
}

// Rests reports whether there is no work for which spares would be worth keeping.
func (e *Engine) Rests() bool { return e.work.quiet && e.work.frames <= few }

// call is something that must run without the mutex.
type call struct {
	do      func()
	done    func(Outcome)
	outcome Outcome
	guest   *Guest // to be woken in dir, or told that it is over
	dir     dir
	over    bool
}

// Config is what an engine needs of its driver, who calls it under one mutex.
type Config struct {
	// Decide says what becomes of a request; whose it is tells the connection's Value. False: resume is called
	// once, later, without the mutex.
	Decide func(c *Conn, h *wire.Head, resume func(Plan)) (Plan, bool)
	// Resume hears, without the mutex, that such a plan has come, and has apply called under it.
	Resume func(apply func())
	// Serve returns what run has a handler answer by. run is called without the mutex.
	Serve func(c *Conn, h *wire.Head, handler http.Handler) (l *Local, run func())
	// Dial begins to connect to an endpoint. It is called without the mutex; what came of it dialled is told under
	// it, and returns the connection if there is one.
	Dial func(ep *Endpoint, dialled func(error) *Conn)
	// Caught is told, without the mutex, of a panic that was survived. nil: none is.
	Caught func(v any, stack []byte)
	// Taken is how many bytes the peer has taken; 0: it is not known. nil: it never is.
	Taken func(c *Conn) uint64
	// Unread reports whether input waits that was not fed yet. nil: nobody knows.
	Unread func(c *Conn) bool
	// Clock is asked for the date of answers, once a second.
	Clock func() time.Time

	Memory     *hold.Bound   // what all connections of the process hold
	MaxStreams uint32        // per client's connection; 0: 250
	MaxHeader  int           // bytes of a field list; 0: 256 KiB
	Idle       time.Duration // a client's connection without streams is closed; 0: 3 min
	Stall      time.Duration // how long a peer may take nothing of what we write; 0: 30 s
}

// New returns an engine that cfg drives.
func New(cfg Config) *Engine {
	l := defaultLimits()
	l.maxStreams = cmp.Or(cfg.MaxStreams, l.maxStreams)
	l.maxHeader = cmp.Or(max(cfg.MaxHeader, 0), l.maxHeader)
	l.idle = cmp.Or(max(cfg.Idle, 0), l.idle)
	l.stall = cmp.Or(cfg.Stall, l.stall)
	e := newEngine(l)
	e.Config = cfg
	return e
}

func newEngine(lim limits) *Engine {
	return &Engine{lim: lim, now: 1, pools: map[*Endpoint]*pool{}, fields: wire.FieldSection{Max: lim.maxHeader}}
}

// Advance tells the time, once per batch of frames. It never goes back.
func (e *Engine) Advance(now time.Duration) { e.now = max(e.now, now) }

func (e *Engine) after(f func()) { e.calls = append(e.calls, call{do: f}) }

func (e *Engine) buffer() []byte {
	if b := e.buffers.Get(); b != nil {
		return b
	}
	return make([]byte, 0, 4096)
}

// dropSpares gives up what is kept to be used again.
func (e *Engine) dropSpares() {
	e.spares = spares{}
	e.buffers.Drop()
}

func (e *Engine) addConn(c *Conn) {
	c.at = len(e.conns)
	e.conns = append(e.conns, c)
	e.Count.Conns[c.side].Add(1)
}

// remove forgets a connection that the driver has closed.
func (e *Engine) remove(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	e.Count.Conns[c.side].Add(-1)
	last := e.conns[len(e.conns)-1]
	e.conns[c.at], last.at = last, c.at
	e.conns[len(e.conns)-1] = nil
	e.conns = e.conns[:len(e.conns)-1]
	e.buffers.Put(c.out)
	c.out = nil
	c.weigh()
}

// AcceptClient takes a client's new connection over. Its first bytes are ours: the server's SETTINGS need not wait (§3.4).
func (e *Engine) AcceptClient() *Conn {
	c := e.newConn(up)
	c.writeSettings()
	if e.going {
		e.drainConn(c)
	}
	return c
}

// close ends all streams of a connection. The driver closes it when its output is written.
func (e *Engine) close(c *Conn, err error) {
	if c.closing {
		return
	}
	c.closing, c.closingAt = true, e.now
	c.in, c.block, c.left, c.data = nil, nil, 0, dataFrame{}
	if c.pool != nil {
		c.pool.drop(c, err) // before its streams look for another connection
	}
	for _, id := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[id]
		if s == nil {
			continue
		}
		e.orphan(c, s, err)
	}
	c.touch()
}

// orphan ends what a stream has on a connection that is being closed.
func (e *Engine) orphan(c *Conn, s *stream, err error) {
	defer e.rescueOrphan(s)
	e.unlinkLeg(s, c.side)
	if c.side == up {
		e.abort(s, ReasonClientLost, err, http2.ErrCodeCancel)
	} else {
		e.backendGone(c, s, err)
	}
}

// lose is told by the driver that the connection broke.
func (e *Engine) lose(c *Conn, err error) {
	defer e.rescue(c)
	if c.pool != nil && !c.closing && (!c.drained || len(c.streams) > 0) {
		e.failedEndpoint(c.pool.ep, err)
		e.failedSharers(c, err)
	}
	e.close(c, err)
	e.buffers.Put(c.out)
	c.out, c.tailID = nil, 0
	c.weigh()
}

// cutOff closes a connection at once.
func (e *Engine) cutOff(c *Conn, err error) {
	c.cut = true
	e.lose(c, err)
	c.touch()
}

// CutAll closes all connections at once, and ends all guests' streams.
func (e *Engine) CutAll(err error) {
	for _, c := range slices.Clone(e.conns) {
		e.cutOff(c, err)
	}
	e.cutGuests(err)
}

// Ended is told by the driver that it has closed a connection.
func (e *Engine) Ended(c *Conn, err error) {
	c.cut = true
	e.lose(c, err)
	e.remove(c)
}

func (e *Engine) failedEndpoint(ep *Endpoint, err error) {
	if ep.Lost != nil {
		ep.Lost()
	}
	if ep.Failed != nil {
		e.after(func() { ep.Failed(err) })
	}
}

// drainConn asks a client not to open further streams; those under way are still taken until it has answered the PING that follows,
// so that none is lost (RFC 9113 §6.8).
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
	// awayGap is what ends a time of sending away: who does it does it every 250 ms.
	awayGap = 4 * TickEvery
	// awayRefuses is for how long requests are then refused that no backend could be reached for. Load balancers notice within
	// seconds, and a Go client repeats a refused request after 0, 1 and 2 s or so. Later ones are told what is wrong: there may be nobody else.
	awayRefuses = 5 * time.Second
)

// refuses reports whether a request that reached no backend is to be repeated elsewhere by its client, which is being sent away: a
// client knows of REFUSED_STREAM that nothing was done for it (RFC 9113 §8.7), and 503 it would take for the answer.
func (e *Engine) refuses(s *stream) bool {
	c := s.leg[up]
	return s.sent == 0 && c != nil && c.goAway != goAwayNone && e.awayAt > 0 && e.now-e.awayAt <= awayGap && e.now-e.awayFrom < awayRefuses
}

// sentAwayAtOnce bounds what one hold of the shard's mutex costs: each is two frames, and a write, some 10 µs.
const sentAwayAtOnce = 64

// SendAway asks clients that have been served to go elsewhere, some of them at a time. more says that there are others.
func (e *Engine) SendAway() (more bool) {
	if e.now-e.awayAt > awayGap || e.awayAt == 0 {
		e.awayFrom = e.now
	}
	e.awayAt = max(e.now, 1)
	n := 0
	for _, c := range e.conns {
		if c.side != up || c.goAway != goAwayNone || c.closing || c.maxID == 0 {
			continue
		}
		if n == sentAwayAtOnce {
			return true
		}
		n++
		e.drainConn(c)
	}
	return false
}

// drainPing is the content of the PING that follows the first GOAWAY.
const drainPing = "farewell"

// finalGoAway says which streams are handled; the connection is closed when they have ended.
func (e *Engine) finalGoAway(c *Conn) {
	c.goAway = goAwayFinal
	c.lastAccepted = c.maxID
	c.writeGoAway(c.maxID, http2.ErrCodeNo, "")
	e.closeIfDone(c)
}

// closeIfDone closes a connection that takes no new stream and has none.
func (e *Engine) closeIfDone(c *Conn) {
	if len(c.streams) > 0 || c.closing {
		return
	}
	if c.goAway == goAwayFinal || c.drained {
		e.close(c, nil)
	}
}

// Drain begins the end: every client is asked to go, and streams that run long are ended after grace.
func (e *Engine) Drain(grace time.Duration) {
	defer e.rescue(nil)
	e.going = true
	e.cutAt = e.now + max(grace, 1)
	for _, c := range slices.Clone(e.conns) {
		e.drainConn(c)
	}
}
