package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/budget"
)

// pool holds one engine's connections to one endpoint, and the streams that wait for one. A stream waits only while no
// connection takes it, and at most limits.wait. Something always reconsiders it: a dial in progress, a connection that
// takes a stream when one ends, its output is written or its SETTINGS come, or redialAt. TestPoolModel checks this.
type pool struct {
	e  *Engine
	ep *Endpoint
	lane
	conns   []*Conn // the first with room is used: filling one before the next makes larger batches
	waiting list
	dialing int
	dialAt  time.Duration // when a dial last began or ended
	// perConn is how many streams a connection takes, from the last SETTINGS; known means that some have come, else it
	// is one. A connection gets no more before its own: the backend would refuse them.
	perConn int
	known   bool

	failures int // failed dials since the last success
	// redialAt is the earliest time for the next dial, set while existing connections may take the
	// streams, or after a connection that was of no use. Zero means at once.
	redialAt time.Duration
}

const (
	defaultPing = 5 * time.Second
	// maxDialing bounds concurrent dials to one endpoint. When fifty thousand watches come together (clients reconnect
	// after a restart), five hundred handshakes at once would be mostly in vain, and a busy server that needs more than
	// two seconds to read our SETTINGS closes the connection with all its requests.
	maxDialing = 8
	// firstRedial and maxRedial bound the backoff after failed dials while a connection exists.
	firstRedial = 250 * time.Millisecond
	maxRedial   = time.Second
	// chokeTime is how long a connection's window may be used up, far above a round trip. The backend may wait for one
	// request's reader: the bodies of others must use another connection.
	chokeTime  = time.Second
	impatience = 500 * time.Millisecond // how long a request waits for a dial, as over HTTP/1.1, see tires
)

var errNoEndpoint = errors.New("no endpoint to send to")

func (e *Engine) pool(s *stream) *pool {
	ep, in := s.ep.carrier(), e.lane(s)
	for {
		list := e.pools[ep]
		for _, p := range list {
			if p.lane == in {
				return p
			}
		}
		if in.owner == "" || len(list) < maxLanes {
			in.owner = string([]byte(in.owner)) // it may be part of a whole head
			p := &pool{e: e, ep: ep, lane: in, perConn: 1}
			e.pools[ep] = append(list, p)
			return p
		}
		in = lane{apart: true}
	}
}

// place chooses an endpoint for the stream's request.
func (e *Engine) place(s *stream) {
	defer e.rescueStream(s)
	switch ep := s.plan.Forward.Pick(s.sending.client, s.sending.tried); {
	case ep != nil:
		e.put(s, ep)
	case s.refuses():
		s.abort(ReasonNoEndpoint, errNoEndpoint, http2.ErrCodeRefusedStream)
	case s.ep == nil || s.tries == 0:
		s.blame(ReasonNoEndpoint, errNoEndpoint)
		s.answerFailure()
	default:
		s.blame(ReasonLost, errNoEndpoint)
		s.answerFailure()
	}
}

// put sends the request to the chosen endpoint, or lets it wait for a connection.
func (e *Engine) put(s *stream, ep *Endpoint) {
	s.picked, s.ep = true, ep
	p := e.pool(s)
	if p.waiting.n == 0 {
		if c := p.conn(); c != nil {
			e.open(s, c)
			return
		}
	}
	s.sending.since, s.sending.until = e.now, cmp.Or(s.sending.until, e.now+waitTime)
	p.waiting.push(&s.wait)
	p.grow()
}

// conn returns a connection that takes another stream.
func (p *pool) conn() *Conn {
	for _, c := range p.conns {
		if c.slots(min(p.perConn, assumedStreams)) > 0 && len(c.out)+c.inflight < p.e.lim.backlogLimit {
			return c
		}
	}
	return nil
}

// slots returns how many more streams the backend takes on c; assumed is used before its SETTINGS.
func (c *Conn) slots(assumed int) int {
	if c.closing || c.drained || c.chokedAt > 0 && c.e.now-c.chokedAt >= chokeTime {
		return 0
	}
	if c.started {
		assumed = int(min(c.peerStreams, 1<<20))
	}
	return max(0, assumed-len(c.streams)-len(c.late))
}

// expected returns how many streams a new connection will probably take.
func (p *pool) expected() int {
	if !p.known {
		return assumedStreams
	}
	return max(1, p.perConn)
}

// grow dials as many connections as the waiting streams need. A connection with unwritten output
// counts as having room, since it soon will: another connection would only hold output.
func (p *pool) grow() {
	limit := p.e.lim.maxConns
	if p.owner != "" {
		limit = max(1, limit/maxLanes)
	}
	each := p.expected()
	need, have := p.waiting.n-p.dialing*each, p.dialing // streams without a connection, connections that count
	if need <= 0 || p.dialing >= maxDialing || p.e.now < p.redialAt {
		return
	}
	for _, c := range p.conns {
		need -= c.slots(each)
		if !c.drained { // else it ends with its requests: watches may last for an hour
			have++
		}
	}
	if p.known && p.perConn == 0 && slices.ContainsFunc(p.conns, func(c *Conn) bool { return !c.drained }) {
		return // it takes none now: more connections would not help, unless it only said so before it ends these
	}
	for need > 0 && p.dialing < maxDialing && have < limit {
		need -= each
		have++
		p.dialing++
		p.dialAt = p.e.now
		p.e.callLater(func() { p.e.Dial(p.ep, p.dialled) })
	}
}

// dialled handles the result of a dial: it adds a new connection to the pool.
func (p *pool) dialled(err error) (c *Conn) {
	e := p.e
	p.dialing--
	p.dialAt = e.now
	if err != nil {
		defer e.rescue(nil)
		p.ep.Failed(err, false)
		p.failed(err)
		return nil
	}
	c = e.newConn(down)
	defer e.rescue(c)
	c.pool = p
	c.writeSettings()
	if !slices.Contains(e.pools[p.ep], p) { // retired during the dial
		c.drained = true
		e.closeIfDone(c)
		return c
	}
	at := slices.IndexFunc(p.conns, func(o *Conn) bool { return o.drained })
	if at < 0 {
		at = len(p.conns)
	}
	p.conns = slices.Insert(p.conns, at, c) // before those that take no more streams: they may be many
	p.serve()
	return c
}

// failed handles a failed dial, or a useless connection, for the waiting streams. If another connection may take them
// soon, some move to other endpoints, and the rest wait for it and for the next dial. Otherwise all of them fail.
func (p *pool) failed(err error) {
	e := p.e
	if p.dialing > 0 {
		return
	}
	if p.freesSlots() {
		p.redialAt = e.now + min(firstRedial<<min(p.failures, 8), maxRedial)
		p.failures++
		e.moveWaiting(p, (*stream).repickOther)
		return
	}
	notified := make(map[*Endpoint]bool)
	for s := range p.waiting.drain { // streams that come back here for a retry have their own dial
		if s.ep.Via != nil && !notified[s.ep] {
			notified[s.ep] = true
			s.ep.Failed(err, false)
		}
		s.release()
		s.failed(failure{reason: ReasonDial, err: err, unprocessed: true})
	}
	e.forgetPool(p)
}

// freesSlots reports whether a connection will soon take a stream. One with only watches will not.
func (p *pool) freesSlots() bool {
	for _, c := range p.conns {
		if c.slots(p.expected()) > 0 || !c.drained && len(c.late) > 0 {
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

// serve sends waiting streams on connections that may have room now. A client's connection has no pool.
func (p *pool) serve() {
	if p == nil || p.waiting.n == 0 {
		return
	}
	for c := p.conn(); c != nil && p.waiting.n > 0; c = p.conn() {
		p.e.open(p.waiting.pop(), c)
	}
	p.grow()
}

// drop removes a connection from its pool. One that ends before it has begun is a failed dial: its server is not ready.
func (p *pool) drop(c *Conn, err error) {
	p.conns = slices.DeleteFunc(p.conns, func(o *Conn) bool { return o == c })
	switch {
	case p.waiting.n == 0:
	case c.useful:
		p.proven()
	case c.started:
		// It has taken no request, or refused all: such a backend must not be dialled as fast as handshakes go.
		p.redialAt = p.e.now + firstRedial
	default:
		p.failed(cmp.Or(err, errors.New("connection ended before the backend's SETTINGS")))
	}
	p.e.forgetPool(p)
}

// proven is called when a connection has been useful: another one may be, too.
func (p *pool) proven() {
	p.redialAt = 0
	p.grow()
}

// tick handles what only time changes: the next dial, and streams that have waited long enough.
func (p *pool) tick() {
	e := p.e
	if p.redialAt > 0 && e.now >= p.redialAt {
		p.redialAt = 0
		p.grow()
	}
	e.moveWaiting(p, func(s *stream) (over bool) {
		if over = e.now >= s.sending.until; over {
			s.answerNoRoom(p)
		}
		return over
	})
	if p.dialing > 0 && e.now-p.dialAt >= impatience {
		e.moveWaiting(p, (*stream).tires)
	}
	e.forgetPool(p)
}

func (s *stream) answerNoRoom(p *pool) {
	defer s.e.rescueStream(s)
	reason, err := ReasonBusy, errors.New("no connection had room for another stream")
	if len(p.conns) == 0 {
		reason, err = ReasonDial, errors.New("no connection to the backend")
	}
	s.blame(reason, err)
	s.answerFailure()
}

// forgetPool removes an empty pool: endpoints come and go.
func (e *Engine) forgetPool(p *pool) {
	if len(p.conns) > 0 || p.dialing > 0 || p.waiting.n > 0 {
		return
	}
	// Not in place: a caller may be at the list.
	left := slices.DeleteFunc(slices.Clone(e.pools[p.ep]), func(o *pool) bool { return o == p })
	if e.pools[p.ep] = left; len(left) == 0 {
		delete(e.pools, p.ep)
	}
}

func (e *Engine) open(s *stream, c *Conn) {
	if s.sending.named {
		s.sending.fields[2].Value = cmp.Or(s.ep.Host, s.ep.Name)
	}
	size := s.sending.size + len(s.sending.fields[2].Value)
	if c.peerHeaders < topStreamID && size > int(c.peerHeaders) {
		s.release()
		err := fmt.Errorf("the backend's limit is %d bytes", c.peerHeaders)
		s.failed(failure{reason: ReasonTooLarge, err: err, final: true})
		return
	}
	c.maxID = (c.maxID + 1) | 1        // the next odd number
	if c.maxID+2 > e.lim.maxStreamID { // §5.1.1: ids are used up, a new connection is needed
		c.drained = true
	}
	id := c.maxID
	c.budget.Earn(budget.Opened)
	if c.asked == nothingDue {
		c.lastRead = e.now
	}
	c.asked = 0
	s.leg[down], s.id[down], s.sent, s.fresh = c, id, e.now, !c.useful
	c.streams[id] = s
	s.sending.slot = len(c.streams) + len(c.late)
	u, d := &s.half[up], &s.half[down]
	u.window, u.head = c.peerWindow, true
	d.recv, d.full, d.credit = streamWindow, streamWindow, 0
	u.sentEnd = u.end && u.q.size == 0
	c.writeHeaders(id, u.sentEnd, s.sending.fields)
	if !u.sentEnd {
		s.advance(up)
	}
}

// Retire implements Server.Retire. When it is called again, the earliest end counts.
func (e *Engine) Retire(ep *Endpoint, grace time.Duration) {
	defer e.rescue(nil)
	pools := e.pools[ep]
	delete(e.pools, ep)
	for _, c := range slices.Clone(e.conns) {
		if c.pool == nil || c.pool.ep != ep {
			continue
		}
		c.drained = true
		c.cutAt = min(c.cutAt, e.now+grace)
		e.closeIfDone(c)
	}
	for _, p := range pools {
		e.moveWaiting(p, (*stream).repick) // nothing was sent: they may move without counting as a retry
	}
}
