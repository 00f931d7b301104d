package engine

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
)

// What one user sends must not end the streams of others (decision 0039). A server ends the whole connection for a head
// that it does not like, and for resets beyond its budget. So heads that a server may not like, requests whose
// connection was lost, and those of owners who have ended connections or canceled much go over connections of their
// owner alone; and a request that was the cause is not sent again.

const (
	// longHead is the least limit of usual servers on a head, or on one field of it: nginx's and
	// Tomcat's are 8 KiB, Apache's is 8,190 bytes, those of Node and hyper are 16 KiB.
	longHead   = 8 << 10
	manyFields = 96 // the least limit on their number, Apache's, Tomcat's and Envoy's, less a few
	// maxLanes is how many owners have connections of their own to one endpoint. All others share
	// those for Plan.Apart. Each may have that part of the endpoint's connections.
	maxLanes    = 32
	suspectTime = time.Second // far above a round trip: a server reads a head at once, so it was no older one
	exileTime   = time.Minute // for owners who have ended a connection
	maxDebts    = 1024        // bounds the owners that are known, about 128 KiB
	maxTold     = 128         // bounds what is kept of a GOAWAY's debug data: a sentence
	// exileAfter is the debt beyond which an owner gets connections of its own: 50 resets within 30 s. Netty's servers
	// end a connection with 200 in 30 s, nghttp2's after 1,000 one with 33 a second.
	exileAfter = 30 * time.Second
	resetCost  = exileAfter / 50
	// lateEvery lets out 60 resets in 30 s, of at most maxLate that wait on a connection. With the
	// first 50 of each owner, that stays below 200.
	lateEvery, maxLate = 2 * TickEvery, 1024
)

// GoAway is a backend's GOAWAY that has an error code.
type GoAway struct {
	Code http2.ErrCode // not NO_ERROR
	Text string        // its debug data, at most maxTold bytes
	last uint32        // the last stream that the backend may have processed
	at   time.Duration // when it came
}

// Error returns the code and the text, escaped.
func (g *GoAway) Error() string {
	if g.Text == "" {
		return "GOAWAY " + g.Code.String()
	}
	return "GOAWAY " + g.Code.String() + " " + strconv.Quote(g.Text)
}

// tells keeps what a backend's GOAWAY says, if it is an error, and answers the requests to which it
// is charged: the backend may keep the connection, like Node, but reads nothing from it any more.
func (e *Engine) tells(c *Conn, p []byte) {
	code := http2.ErrCode(binary.BigEndian.Uint32(p[4:]))
	if code == http2.ErrCodeNo || c.told != nil {
		return
	}
	told := &GoAway{Code: code, Text: string(p[8:min(len(p), 8+maxTold)]), at: e.now}
	c.told, told.last = told, binary.BigEndian.Uint32(p)&topStreamID
	if code == http2.ErrCodeEnhanceYourCalm && c.askedAt > 0 {
		c.pool.ep.offended.Add(tooOften)
	}
	e.callLater(func() { c.pool.ep.Told(told) })
	for s := range c.ordered(func(s *stream) bool { return e.blames(c, s) }) {
		s.unlinkLeg(down)
		s.failed(e.blame(c, s, failure{}))
	}
}

// lane says which requests share connections to an endpoint.
type lane struct {
	apart bool   // those with Plan.Apart
	owner string // those of one owner; "" means of all
}

// lane returns the lane for a stream that is to be sent.
func (e *Engine) lane(s *stream) lane {
	to := s.sending
	if to.alone = to.alone || to.long || e.isExiled(s.plan.Owner); !to.alone {
		return lane{apart: s.plan.Apart}
	}
	return lane{apart: s.plan.Apart || s.plan.Owner == "", owner: s.plan.Owner}
}

func (e *Engine) isExiled(owner string) bool {
	return e.now < e.exiled && e.debts[owner] > e.now+exileAfter
}

// lateReset is the reset of a stream, which waits.
type lateReset struct {
	id   uint32
	sent bool // the request, whole: the stream ends with the answer
}

// delays charges the reset of a stream to its owner, and reports whether it waits: others' streams are there, and this
// owner cancels hundreds at once, or we end all watches. Until then the server has the stream, and may fill its window.
func (e *Engine) delays(c *Conn, s *stream) bool {
	if c.pool.owner != "" {
		return false
	}
	e.charge(s.plan.Owner, resetCost)
	ends := len(c.streams) > int(exileAfter/resetCost) && (s.reason == ReasonDrain || s.reason == ReasonRetired)
	wait := len(c.late) < maxLate && (ends || e.isExiled(s.plan.Owner))
	if wait {
		c.late = append(c.late, lateReset{s.id[down], s.half[up].sentEnd})
	}
	return wait
}

// endsLate drops the reset that waits for a stream that the server ends, by a reset or by the end of its answer.
func (c *Conn) endsLate(id uint32, reset bool) {
	before := len(c.late)
	c.late = slices.DeleteFunc(c.late, func(l lateReset) bool { return l.id == id && (reset || l.sent) })
	if len(c.late) < before {
		c.pool.serve()
	}
}

// resetLate sends the next reset that waits.
func (c *Conn) resetLate() {
	if len(c.late) > 0 && c.e.now-c.lateAt >= lateEvery {
		c.lateAt = c.e.now
		c.writeReset(c.late[0].id, http2.ErrCodeCancel)
		c.late = c.late[1:]
		c.pool.serve()
	}
}

// measure finds out whether the head is one that a server may not like.
func (to *sending) measure() {
	n := 0
	for i := range to.fields {
		n += int(to.fields[i].Size())
	}
	const overhead = 32 // of each field in Size
	to.size = n - len(to.fields[2].Value)
	to.long = n-overhead*len(to.fields) > longHead || len(to.fields) > manyFields
}

// blame changes the failure of a request whose connection c has ended. If the backend did not like the request's head,
// that is final. If the request may have been the cause, it is sent once more, over a connection of its own.
func (e *Engine) blame(c *Conn, s *stream, f failure) failure {
	to := s.sending
	if to == nil || f.final || s.half[down].head {
		return f
	}
	g := c.told
	switch {
	case e.blames(c, s):
		f = failure{reason: ReasonBlamed, err: g, final: true}
		if to.long {
			f.reason = ReasonTooLarge
		}
		e.charge(s.plan.Owner, exileTime+exileAfter)
	case g != nil:
		to.lost, to.alone = true, true
	case !f.unprocessed && (!f.unacked || to.lost && e.now-s.sent <= suspectTime): // Node acknowledges late
		if f.final = to.lost; to.lost {
			e.charge(s.plan.Owner, exileTime+exileAfter)
		}
		to.lost, to.alone = true, true
	}
	return f
}

// blames reports whether an error of the backend is charged to the stream's request: to its newest
// head, to long ones, and to those that were there when another connection was lost.
func (e *Engine) blames(c *Conn, s *stream) bool {
	g, to := c.told, s.sending
	return g != nil && to != nil && !s.half[down].head && g.at-s.sent <= suspectTime &&
		(to.long || to.lost || s.id[down] == g.last)
}

// charge adds to the debt of an owner, which falls with time.
func (e *Engine) charge(owner string, debt time.Duration) {
	if owner == "" {
		return
	}
	at, known := e.debts[owner]
	if !known {
		if len(e.debts) >= maxDebts {
			maps.DeleteFunc(e.debts, func(_ string, at time.Duration) bool { return at <= e.now })
		}
		if len(e.debts) >= maxDebts {
			clear(e.debts) // so many at once are not told apart
		}
		owner = string([]byte(owner)) // it may be part of a whole head
	}
	at = min(max(at, e.now)+debt, e.now+exileTime+exileAfter)
	e.debts[owner] = at
	e.exiled = max(e.exiled, at-exileAfter)
}
