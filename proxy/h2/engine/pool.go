package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// pool holds one engine's connections to one endpoint, and the streams that wait for one.
//
// A stream waits only while no connection takes it, never longer than limits.wait, and something is sure to look at
// it again before that: a dial is under way, or a connection will take a stream when one ends, its output is written
// or its SETTINGS come, or redialAt is set. TestPoolModel holds this over random events.
type pool struct {
	e       *Engine
	ep      *Endpoint
	conns   []*Conn // the first with room is used: filling one before the next gives larger batches
	waiting list
	dialing int
	// perConn is how many streams a connection takes, as the endpoint has said last; said: it has.
	perConn int
	said    bool

	failures int // dials that have failed since one succeeded
	// redialAt is before when no dial is made, because connections are there that may serve, or the last one was good for
	// nothing; 0: it may be.
	redialAt time.Duration
}

const (
	defaultMaxConns = 1024
	defaultPing     = 5 * time.Second
	// maxDialing bounds the dials under way to one endpoint. Fifty thousand watches that come together (clients come
	// back after a restart) would else be five hundred handshakes at once, most of them in vain, and a busy server that
	// needs two seconds to read our SETTINGS gives the connection up with all that it carries.
	maxDialing = 8
	// firstRedial and maxRedial are the pauses between dials that fail while a connection is there.
	firstRedial = 250 * time.Millisecond
	maxRedial   = time.Second
)

var errNoEndpoint = errors.New("no endpoint to send to")

func (e *Engine) pool(ep *Endpoint) *pool {
	p := e.pools[ep]
	if p == nil {
		p = &pool{e: e, ep: ep}
		e.pools[ep] = p
	}
	return p
}

// place finds a connection for the stream's request.
func (e *Engine) place(s *stream) {
	defer e.rescueStream(s)
	ep := s.plan.Forward.Pick(s.sending.tried)
	if ep == nil {
		if e.refuses(s) {
			e.abort(s, ReasonNoEndpoint, errNoEndpoint, http2.ErrCodeRefusedStream)
			return
		}
		if s.ep == nil || s.tries == 0 {
			s.blame(ReasonNoEndpoint, errNoEndpoint)
		} else {
			s.blame(ReasonLost, errNoEndpoint)
		}
		e.answerFailure(s)
		return
	}
	e.put(s, ep)
}

// put sends the request to an endpoint that was picked, or has it wait for a connection.
func (e *Engine) put(s *stream, ep *Endpoint) {
	s.picked, s.ep = true, ep
	p := e.pool(ep.carrier())
	if p.waiting.n == 0 {
		if c := p.conn(); c != nil {
			e.open(s, c)
			return
		}
	}
	if s.sending.until == 0 {
		s.sending.until = e.now + e.lim.wait
	}
	p.waiting.push(&s.wait)
	p.grow()
}

// leaveWait takes the stream off the list of those that wait for a connection.
func (e *Engine) leaveWait(s *stream) {
	if s.wait.in != nil {
		s.wait.unlink()
		e.release(s)
	}
}

// conn returns a connection that takes another stream.
func (p *pool) conn() *Conn {
	for _, c := range p.conns {
		if c.takesStream() {
			return c
		}
	}
	return nil
}

func (c *Conn) takesStream() bool {
	return c.slots(c.pool.early()) > 0 && len(c.out)+c.inflight < c.e.lim.backlogLimit
}

// slots is how many further streams the backend takes on c, or may be expected to if it has not said so yet.
func (c *Conn) slots(unsaid int) int {
	if c.closing || c.drained {
		return 0
	}
	if c.started {
		unsaid = int(min(c.peerStreams, 1<<20))
	}
	return max(0, unsaid-len(c.streams))
}

// early is how many streams a connection gets before its SETTINGS come. Those that are too many the backend refuses.
func (p *pool) early() int {
	if !p.said {
		return 1
	}
	return min(p.perConn, assumedStreams)
}

// expected is how many streams a new connection will take.
func (p *pool) expected() int {
	if !p.said {
		return assumedStreams
	}
	return max(1, p.perConn)
}

// grow dials as many connections as the waiting streams need. One whose output is not written yet has room for its
// streams later on: another would only hold more output.
func (p *pool) grow() {
	limit := p.ep.MaxConns
	if limit <= 0 {
		limit = defaultMaxConns
	}
	each := p.expected()
	need := p.waiting.n - p.dialing*each
	if need <= 0 || p.dialing >= maxDialing || len(p.conns)+p.dialing >= limit || p.e.now < p.redialAt {
		return
	}
	for _, c := range p.conns {
		need -= c.slots(each)
	}
	if p.said && p.perConn == 0 && len(p.conns) > 0 { // it wants no streams now: more connections would not change that
		return
	}
	for need > 0 && p.dialing < maxDialing && len(p.conns)+p.dialing < limit {
		need -= each
		p.dialing++
		p.e.after(func() { p.e.Dial(p.ep, p.dialled) })
	}
}

// dialled is told what has come of a dial.
func (p *pool) dialled(err error) *Conn {
	if err != nil {
		p.e.dialFailed(p, err)
		return nil
	}
	return p.e.connected(p)
}

// connected puts a new connection to use.
func (e *Engine) connected(p *pool) (c *Conn) {
	p.dialing--
	c = e.newConn(down)
	defer e.rescue(c)
	c.pool = p
	c.writeSettings()
	if e.pools[p.ep] != p { // retired while it was dialled
		c.drained = true
		e.closeIfDone(c)
		return c
	}
	p.conns = append(p.conns, c)
	p.serve(c)
	return c
}

// dialFailed is told that a dial has come to nothing.
func (e *Engine) dialFailed(p *pool, err error) {
	defer e.rescue(nil)
	p.dialing--
	e.failedEndpoint(p.ep, err)
	p.failed(err)
}

// failed fails the streams that wait for a connection that has not come about, unless another may serve them: then
// those go elsewhere that can, and the others wait for that and for the next dial.
func (p *pool) failed(err error) {
	e := p.e
	if p.dialing > 0 {
		return
	}
	if p.turnsOver() {
		p.redialAt = e.now + min(firstRedial<<min(p.failures, 8), maxRedial)
		p.failures++
		e.elsewhere(p, e.another)
		return
	}
	told := make(map[*Endpoint]bool)
	for n := p.waiting.n; n > 0; n-- { // those that come back here for a retry have their own dial
		s := p.waiting.pop()
		if s == nil {
			break
		}
		if s.ep.Via != nil && !told[s.ep] {
			told[s.ep] = true
			e.failedEndpoint(s.ep, err)
		}
		e.release(s)
		e.failed(s, failure{reason: ReasonDial, err: err, unprocessed: true})
	}
	e.forgetPool(p)
}

// turnsOver reports whether a connection will soon take a stream. One that only holds watches will not.
func (p *pool) turnsOver() bool {
	for _, c := range p.conns {
		if c.slots(p.expected()) > 0 {
			return true
		}
		for _, s := range c.streams {
			if !c.drained && !s.plan.LongRunning {
				return true
			}
		}
	}
	return false
}

// serve gives waiting streams their turn on a connection that may have got room.
func (p *pool) serve(c *Conn) {
	for p.waiting.n > 0 && c.takesStream() {
		p.e.open(p.waiting.pop(), c)
	}
	p.grow()
}

// told hears that a connection's SETTINGS have come: they say what to expect of the others, too.
func (p *pool) told(c *Conn) {
	p.perConn, p.said, p.failures = int(min(c.peerStreams, topStreamID)), true, 0
	for p.waiting.n > 0 {
		c := p.conn()
		if c == nil {
			break
		}
		p.e.open(p.waiting.pop(), c)
	}
	p.grow()
}

// slotFree is told that a stream was taken off a backend's connection.
func (e *Engine) slotFree(c *Conn) {
	e.closeIfDone(c)
	if c.pool.waiting.n > 0 {
		c.pool.serve(c)
	}
}

// drop takes a connection out of its pool. One that ends before it has begun is as good as a failed dial: its server
// is there, but serves nobody.
func (p *pool) drop(c *Conn, err error) {
	p.conns = slices.DeleteFunc(p.conns, func(o *Conn) bool { return o == c })
	switch {
	case p.waiting.n == 0:
	case c.useful:
		p.works()
	case c.started:
		// It has taken nothing, or given all of it back: a backend that does so again and again is not to be dialled
		// as fast as handshakes go.
		p.redialAt = p.e.now + firstRedial
	default:
		p.failed(cmp.Or(err, errNotBegun))
	}
	p.e.forgetPool(p)
}

// works is told that a connection is good for something: another may be, too.
func (p *pool) works() {
	p.redialAt = 0
	p.grow()
}

var errNotBegun = errors.New("connection ended before the backend's SETTINGS")

// look is for what only time changes: the next dial, and streams that have waited for long enough.
func (p *pool) look() {
	e := p.e
	if p.redialAt > 0 && e.now >= p.redialAt {
		p.redialAt = 0
		p.grow()
	}
	var over []*stream
	for n := p.waiting.first; n != nil; n = n.next {
		if e.now >= n.s.sending.until {
			over = append(over, n.s)
		}
	}
	for _, s := range over {
		e.crowdedOut(s, p)
	}
	e.forgetPool(p)
}

// crowdedOut answers a request that no connection had room for.
func (e *Engine) crowdedOut(s *stream, p *pool) {
	reason, err := ReasonBusy, errNoRoom
	if len(p.conns) == 0 {
		reason, err = ReasonDial, errNoConnection
	}
	s.blame(reason, err)
	e.answerFailure(s)
}

var (
	errNoRoom       = errors.New("no connection had room for another stream")
	errNoConnection = errors.New("no connection came about")
)

// forgetPool forgets a pool that holds nothing: endpoints come and go.
func (e *Engine) forgetPool(p *pool) {
	if len(p.conns) == 0 && p.dialing == 0 && p.waiting.n == 0 && e.pools[p.ep] == p {
		delete(e.pools, p.ep)
	}
}

// open sends the stream's request on c.
func (e *Engine) open(s *stream, c *Conn) {
	if s.sending.named {
		s.sending.fields[2].Value = s.ep.Name
	}
	if c.peerHeaders < topStreamID && listSize(s) > int64(c.peerHeaders) {
		e.release(s)
		e.failed(s, failure{reason: ReasonTooLarge, err: errors.New("larger than the backend's limit"), final: true})
		return
	}
	if c.maxID == 0 {
		c.maxID = 1
	} else {
		c.maxID += 2
	}
	if c.maxID+2 > e.lim.maxStreamID { // §5.1.1: ids are used up, a new connection is needed
		c.drained = true
	}
	id := c.maxID
	s.leg[down], s.id[down], s.sent = c, id, e.now
	c.streams[id] = s
	s.sending.slot = len(c.streams)
	u, d := &s.half[up], &s.half[down]
	u.window, u.head = c.peerWindow, true
	d.recv, d.full, d.credit = e.lim.streamWindow, e.lim.streamWindow, 0
	if u.end && u.q.size == 0 && u.trailers == nil {
		u.sentEnd = true
		c.writeHeaders(id, true, s.sending.fields)
		return
	}
	c.writeHeaders(id, false, s.sending.fields)
	e.advance(s, up)
}

func listSize(s *stream) int64 {
	n := int64(0)
	for i := range s.sending.fields {
		n += int64(s.sending.fields[i].Size())
	}
	return n
}

// Retire takes an endpoint out of service: its connections finish what they have, long-running streams end after grace. It may be repeated: the earliest end counts.
func (e *Engine) Retire(ep *Endpoint, grace time.Duration) {
	defer e.rescue(nil)
	p := e.pools[ep]
	delete(e.pools, ep)
	for _, c := range slices.Clone(e.conns) {
		if c.pool == nil || c.pool.ep != ep {
			continue
		}
		c.drained = true
		if at := e.now + max(grace, 1); c.cutAt == 0 || at < c.cutAt {
			c.cutAt = at
		}
		e.closeIfDone(c)
	}
	for p != nil && p.waiting.n > 0 {
		s := p.waiting.pop()
		e.release(s)
		e.place(s) // nothing was sent: it may go elsewhere without counting as a retry
	}
}
