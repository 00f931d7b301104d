package proxy

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

const (
	// parkedAtOnce is how many requests of a connection are decided with waiting at once: as many as
	// one user's reviews. The rest of its requests would wait for those anyway, and two hundred
	// goroutines that are answered together would keep the loop from a processor.
	parkedAtOnce = 16
	// maxParked is how many wait for that: a connection's streams, and those that it has given up.
	maxParked = 1024
)

// park has a request decided on a goroutine of its own, or after another one; false: too many wait.
// The goroutine ends with the look-ups' own timeouts.
func (c *frameConn) park(decide func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.deciding < parkedAtOnce:
		c.deciding++
		go func() {
			for ; decide != nil; decide = c.unpark() {
				decide()
			}
		}()
	case len(c.parked) < maxParked:
		c.parked = append(c.parked, decide)
	default:
		return false
	}
	return true
}

// unpark returns what waits longest; nil: nothing does.
func (c *frameConn) unpark() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.parked) == 0 {
		c.parked = nil
		c.deciding--
		return nil
	}
	first := c.parked[0]
	c.parked[0] = nil
	c.parked = c.parked[1:]
	return first
}

// decideParked decides with waiting. On this goroutine a panic would end the process: at a chain that
// a stranger has made, say (CVE-2025-58188).
func (l *frameLane) decideParked(r *frameRequest) (plan h2.Plan) {
	ctx, cancel := context.WithDeadline(context.Background(), r.head.Arrived.Add(parkTimeout))
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			l.p.log.Error("deciding panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			r.held.leave()
			plan = h2.Plan{Serve: l.p.answer(errPanicked())}
		}
	}()
	l.p.decide(ctx, &r.decision, &r.head, r.conn.conn, true)
	return l.plan(r)
}

// parkTimeout bounds how long a stream waits for a TokenReview and a SubjectAccessReview of 10 s each.
const parkTimeout = 25 * time.Second
