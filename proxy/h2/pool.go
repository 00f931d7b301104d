package h2

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// pool holds one engine's connections to one endpoint, and the streams that wait for one.
type pool struct {
	e       *engine
	ep      *Endpoint
	conns   []*conn // the first with room is used: filling one before the next gives larger batches
	waiting list
	dialing int
	perConn int // streams that a connection takes, as the endpoint last said; 0: it has not said
}

const (
	defaultMaxConns = 1024
	defaultPing     = 5 * time.Second
	// maxDialing bounds the dials under way to one endpoint. Fifty thousand watches that come together (clients come back after a restart) would else be five hundred
	// handshakes at once, most of them in vain, and a busy server that needs two seconds to read our SETTINGS gives the connection up with all that it carries.
	maxDialing = 8
)

var errNoEndpoint = errors.New("no endpoint to send to")

func (e *engine) pool(ep *Endpoint) *pool {
	p := e.pools[ep]
	if p == nil {
		p = &pool{e: e, ep: ep}
		e.pools[ep] = p
	}
	return p
}

// place finds a connection for the stream's request.
func (e *engine) place(s *stream) {
	ep := s.plan.Forward.Pick(s.sending.tried)
	if ep == nil {
		if s.ep == nil || s.tries == 0 {
			s.blame(ReasonNoEndpoint, errNoEndpoint)
		} else {
			s.blame(ReasonLost, errNoEndpoint)
		}
		e.answerFailure(s)
		return
	}
	s.picked, s.ep = true, ep
	p := e.pool(ep.carrier())
	if p.waiting.n == 0 {
		if c := p.conn(); c != nil {
			e.open(s, c)
			return
		}
	}
	p.waiting.push(&s.wait)
	p.grow()
}

// leaveWait takes the stream off the list of those that wait for a connection.
func (e *engine) leaveWait(s *stream) {
	if s.wait.in != nil {
		s.wait.unlink()
		e.release(s)
	}
}

// conn returns a connection that takes another stream.
func (p *pool) conn() *conn {
	for _, c := range p.conns {
		if c.takesStream() {
			return c
		}
	}
	return nil
}

func (c *conn) takesStream() bool {
	return !c.closing && !c.drained && len(c.streams) < int(min(c.peerStreams, 1<<20)) && len(c.out)+c.inflight < c.e.lim.backlogLimit
}

// grow dials as many connections as the waiting streams need.
func (p *pool) grow() {
	limit := p.ep.MaxConns
	if limit <= 0 {
		limit = defaultMaxConns
	}
	each := max(p.perConn, assumedStreams)
	for p.dialing < maxDialing && p.dialing*each < p.waiting.n && len(p.conns)+p.dialing < limit {
		p.dialing++
		p.e.after(p.e.dial(p))
	}
}

// connected puts a new connection to use.
func (e *engine) connected(p *pool) *conn {
	p.dialing--
	c := e.newConn(down)
	c.pool = p
	c.writeSettings()
	if e.pools[p.ep] != p { // retired while it was dialled
		c.drained = true
		e.closeIfDone(c)
		return c
	}
	p.conns = append(p.conns, c)
	e.serveWaiting(p)
	return c
}

// dialFailed fails the streams that waited, unless another connection may still serve them.
func (e *engine) dialFailed(p *pool, err error) {
	p.dialing--
	e.failedEndpoint(p.ep, err)
	if p.dialing > 0 || len(p.conns) > 0 {
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

// serveWaiting gives waiting streams their turn.
func (e *engine) serveWaiting(p *pool) {
	for p.waiting.n > 0 {
		c := p.conn()
		if c == nil {
			p.grow()
			return
		}
		e.open(p.waiting.pop(), c)
	}
}

// slotFree is told that a stream was taken off a backend's connection.
func (e *engine) slotFree(c *conn) {
	e.closeIfDone(c)
	if c.pool.waiting.n > 0 {
		e.serveWaiting(c.pool)
	}
}

// drop takes a connection out of its pool.
func (p *pool) drop(c *conn) {
	p.conns = slices.DeleteFunc(p.conns, func(o *conn) bool { return o == c })
	if p.waiting.n > 0 {
		p.grow()
	}
	p.e.forgetPool(p)
}

// forgetPool forgets a pool that holds nothing: endpoints come and go.
func (e *engine) forgetPool(p *pool) {
	if len(p.conns) == 0 && p.dialing == 0 && p.waiting.n == 0 && e.pools[p.ep] == p {
		delete(e.pools, p.ep)
	}
}

// open sends the stream's request on c.
func (e *engine) open(s *stream, c *conn) {
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
	u, d := &s.half[up], &s.half[down]
	u.window, u.head = c.peerWindow, true
	d.recv, d.credit = e.lim.streamWindow, 0
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

// retire takes an endpoint out of service: its connections finish what they have, long-running streams end after grace. It may be repeated: the earliest end counts.
func (e *engine) retire(ep *Endpoint, grace time.Duration) {
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

// eject sends elsewhere what an endpoint that was found unhealthy still holds up: requests that wait for a connection to it, which have cost nobody anything, and
// those that wait for its answer and may be sent again.
func (e *engine) eject(ep *Endpoint) {
	p := e.pools[ep]
	if p == nil {
		return
	}
	all := func(*stream) bool { return true }
	e.elsewhere(p, all)
	for _, c := range slices.Clone(p.conns) {
		e.again(c, all)
	}
}

// elsewhere has requests that wait for a connection choose again.
func (e *engine) elsewhere(p *pool, which func(*stream) bool) {
	for n := p.waiting.n; n > 0; n-- { // those that choose it again are behind them
		s := p.waiting.pop()
		switch {
		case s == nil:
			return
		case which(s):
			e.release(s)
			e.place(s)
		default:
			p.waiting.push(&s.wait)
		}
	}
}

// again sends elsewhere requests that wait for an answer and may be sent again.
func (e *engine) again(c *conn, which func(*stream) bool) {
	for _, id := range c.ids(func(s *stream) bool { return !s.half[down].head && s.sending.again && which(s) }) {
		if s := c.streams[id]; s != nil {
			e.reset(s, down, http2.ErrCodeCancel)
			e.failed(s, failure{reason: ReasonLost, err: errEjected})
		}
	}
}

// ids are of streams, in their order.
func (c *conn) ids(which func(*stream) bool) []uint32 {
	var ids []uint32
	for id, s := range c.streams {
		if which(s) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

var errEjected = errors.New("endpoint was found unhealthy")
