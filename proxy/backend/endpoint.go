package backend

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// softStreams is how many requests an HTTP/2 connection gets before another is opened beside it: one connection is one TCP flow and, at the other end, mostly one
	// goroutine that reads frames (kubernetes/kubernetes#74280, #60484).
	softStreams = 100
	// softConns bounds those additional connections. Beyond it, more are opened only when the peer's own limit of streams is reached.
	softConns = 8
	// maxDials bounds the dials under way to one endpoint that speaks HTTP/1.1, where each waiting request needs a connection of its own.
	maxDials = 16
	// maxWaiters bounds the requests that wait for a connection of one endpoint: a second's worth at 1,000 requests a second.
	maxWaiters = 1000
	// dialTimeout bounds resolving, connecting and TLS together. A SYN is sent again after 1 s and 3 s: two may get lost. It must stay below the 5 s in which a
	// blackholed host is to be noticed.
	dialTimeout = 4 * time.Second
	// impatience is how long a request waits for a connection of one endpoint when there is another to go to. The dial goes on without it.
	impatience = 500 * time.Millisecond
	// queueTimeout is how long it waits when there is none. A dial that fails ends the wait of all much earlier; this is for a queue that moves.
	queueTimeout = 10 * time.Second
	// dialPause is for how long a failed dial answers for those that follow: a refusing endpoint gets at most ten dials a second.
	dialPause = 100 * time.Millisecond
	// idleTimeout is after how long an unused connection is closed: upstream's own value, so that servers are used to it.
	idleTimeout = 90 * time.Second
	// staleIdle is after how long without use an HTTP/1.1 connection carries no request that cannot be repeated: the server may be closing it this very moment, and
	// HTTP/1.1 does not tell whether it has read the request.
	staleIdle = 3 * time.Second
)

// endpoint is one address of an Upstream, and the connections to it.
type endpoint struct {
	up      *Upstream
	address string
	slot    atomic.Value // the lane's
	// inFlight counts the Leases.
	inFlight  atomic.Int64
	suspicion suspicion
	// out says that the endpoint is unhealthy while others are not. It is set before waiting is cancelled: who enters that and finds out unset will be.
	out atomic.Bool
	// via is the endpoint whose HTTP/2 connections carry the requests while the Upstream has its carrier. Nil: there was never one. Set by Pools.mu.
	via atomic.Pointer[endpoint]
	// waiting holds the requests whose response is awaited and that may be sent elsewhere.
	waiting cancels
	// starved says that a change of a connection's state matters: somebody waits, or a connection was found full. The hook runs at the end of every request.
	starved atomic.Bool

	// mu guards what follows. It is never held over I/O.
	mu      sync.Mutex
	conns   []*conn
	waiters []*waiter
	dialing int
	http1   bool // the last connection spoke HTTP/1.1
	removed bool
	// changed is closed when connections made before must take no new stream; another takes its place. For connections that DialH2 and DialUpgrade have given away.
	changed chan struct{}
	// ejected is closed when the endpoint is found unhealthy while others are not; another takes its place.
	ejected chan struct{}
	failed  time.Time // when the last dial failed
	failure error
}

// waiter is a request without a connection. got has room for the one answer.
type waiter struct {
	got  chan reply
	once bool // cannot be repeated: see staleIdle
}

type reply struct {
	conn *conn
	err  error
}

func newEndpoint(u *Upstream, address string) *endpoint {
	return &endpoint{up: u, address: address, changed: make(chan struct{}), ejected: make(chan struct{})}
}

// get returns a connection with a place reserved on it. once says that the request cannot be repeated, patience how long to wait for a connection.
func (e *endpoint) get(ctx context.Context, once bool, patience time.Duration) (*conn, error) {
	e.mu.Lock()
	if c := e.reserveLocked(once); c != nil {
		e.spreadLocked()
		e.mu.Unlock()
		return c, nil
	}
	w := &waiter{got: make(chan reply, 1), once: once}
	err := e.refuseLocked()
	if err == nil {
		e.waiters = append(e.waiters, w)
		e.starved.Store(true)
		e.growLocked()
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-w.got:
		return r.conn, r.err
	case <-timer.C:
		return e.giveUp(w, &dialError{dialConnect, errPatience})
	case <-ctx.Done():
		return e.giveUp(w, ctx.Err())
	}
}

// refuseLocked says why it is no use to wait.
func (e *endpoint) refuseLocked() error {
	switch {
	case e.removed:
		return &dialError{dialConnect, errGone}
	case e.dialing == 0 && e.failure != nil && time.Since(e.failed) < dialPause:
		return e.failure
	case len(e.waiters) >= maxWaiters:
		return errQueue
	}
	return nil
}

// giveUp takes w out of the queue. An answer that came meanwhile wins, so that no reserved place gets lost.
func (e *endpoint) giveUp(w *waiter, err error) (*conn, error) {
	e.mu.Lock()
	if i := slices.Index(e.waiters, w); i >= 0 {
		e.waiters = slices.Delete(e.waiters, i, i+1)
		e.mu.Unlock()
		return nil, err
	}
	e.mu.Unlock()
	r := <-w.got
	return r.conn, r.err
}

// reserveLocked takes a place on the least loaded connection that has one.
func (e *endpoint) reserveLocked(once bool) *conn {
	for {
		var best *conn
		for _, c := range e.conns {
			if c.draining || c.full || once && c.staleLocked() || c.unsettledLocked() {
				continue
			}
			if best == nil || c.inFlight < best.inFlight {
				best = c
			}
		}
		if best == nil {
			return nil
		}
		if best.cc.Reserve() == nil {
			best.inFlight++
			return best
		}
		// Full, or ended without our having heard of it. It counts again when a request of it ends, or its state changes.
		best.full = true
		e.starved.Store(true)
	}
}

// growLocked dials for those that wait.
func (e *endpoint) growLocked() {
	room := e.up.target.maxConns - len(e.conns) - e.dialing
	want := 0
	switch {
	case len(e.waiters) == 0:
	case e.http1:
		want = min(len(e.waiters), maxDials) - e.dialing
	case !slices.ContainsFunc(e.conns, (*conn).freshLocked): // which is about to take them
		want = 1 - e.dialing
	}
	e.dialLocked(min(want, room))
}

// spreadLocked dials when each connection has its fair share of streams.
func (e *endpoint) spreadLocked() {
	live := 0
	for _, c := range e.conns {
		if c.draining || c.full {
			continue
		}
		if c.inFlight < softStreams || c.http1 {
			return
		}
		live++
	}
	if live > 0 && live < softConns {
		e.dialLocked(1 - e.dialing)
	}
}

// dialLocked starts n dials.
func (e *endpoint) dialLocked(n int) {
	if e.removed || e.up.owner.ctx.Err() != nil {
		return
	}
	for range n {
		if len(e.conns) == 0 {
			e.suspicion.dialStarted()
		}
		e.dialing++
		e.up.owner.spawn(e.dialOne)
	}
}

// dialOne makes one connection. It ends after dialTimeout at the latest.
func (e *endpoint) dialOne() {
	ctx, cancel := context.WithTimeout(e.up.owner.ctx, dialTimeout)
	defer cancel()
	e.mu.Lock()
	changed := e.changed
	e.mu.Unlock()
	c, err := e.connect(ctx)
	e.mu.Lock()
	e.dialing--
	switch {
	case err == nil && e.removed:
		e.failLocked(&dialError{dialConnect, errGone})
	case err == nil && changed != e.changed:
		// Dialled as whom we no longer are: nobody may use it, the next dial is for those that wait.
		e.suspicion.dialSucceeded()
	case err == nil && c.cc.Err() != nil:
		// It has ended already, and noticed has found nothing to take out.
		e.suspicion.dialFailed()
		e.failLocked(&dialError{dialConnect, errLost})
	case err == nil:
		e.http1 = c.http1
		e.failure = nil
		e.suspicion.dialSucceeded()
		e.conns = append(e.conns, c)
		e.up.meter.connections.Add(1)
		e.serveLocked()
		c = nil
	default:
		e.failed, e.failure = time.Now(), err
		e.suspicion.dialFailed()
		if e.dialing == 0 {
			e.failLocked(err)
		}
	}
	e.growLocked()
	e.mu.Unlock()
	if c != nil {
		c.discard()
	}
}

// serveLocked gives free places to those that wait, first come first served.
func (e *endpoint) serveLocked() {
	for len(e.waiters) > 0 {
		w := e.waiters[0]
		c := e.reserveLocked(w.once)
		if c == nil {
			return
		}
		e.waiters[0] = nil
		e.waiters = e.waiters[1:]
		w.got <- reply{conn: c}
	}
}

// failLocked answers all that wait.
func (e *endpoint) failLocked(err error) {
	for _, w := range e.waiters {
		w.got <- reply{err: err}
	}
	e.waiters = nil
}

// lost makes the endpoint the worse choice until a probe has looked.
func (e *endpoint) lost() { e.suspicion.doubt(e.up.target.doubt) }

// release gives back a place on c. broken says that the connection is not to be used again.
func (e *endpoint) release(c *conn, broken bool) {
	e.mu.Lock()
	c.inFlight--
	c.full = false
	c.idle = time.Now()
	c.draining = c.draining || broken
	done := e.settleLocked(c)
	e.serveLocked()
	e.growLocked()
	e.mu.Unlock()
	if done {
		c.discard()
	}
}

// callOff gives back a place on c that was not used.
func (e *endpoint) callOff(c *conn) {
	c.cc.Release()
	e.release(c, false)
}

// settleLocked takes c out when it is no longer needed, and reports whether the caller is to close it.
func (e *endpoint) settleLocked(c *conn) bool {
	if c.cc.Err() != nil {
		c.draining = true
	}
	if !c.draining || c.inFlight > 0 {
		return false
	}
	i := slices.Index(e.conns, c)
	if i < 0 {
		return false
	}
	e.conns = slices.Delete(e.conns, i, i+1)
	e.up.meter.connections.Add(-1)
	return true
}

// noticed is called when c's state has changed: a stream is free again, or the connection has ended.
func (e *endpoint) noticed(c *conn) {
	e.mu.Lock()
	c.full = false
	done := e.settleLocked(c)
	e.serveLocked()
	e.growLocked()
	if len(e.waiters) == 0 {
		e.starved.Store(false)
	}
	e.mu.Unlock()
	if done {
		c.discard()
	}
}

// drainConn lets c finish its requests and take no new one.
func (e *endpoint) drainConn(c *conn) {
	e.mu.Lock()
	c.draining = true
	done := e.settleLocked(c)
	e.mu.Unlock()
	if done {
		c.discard()
	}
}

// recall does so for connections that were given away.
func (e *endpoint) recall() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recallLocked()
}

func (e *endpoint) recallLocked() {
	if !e.removed { // else changed is closed for good
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

// drain does so for every connection, given away ones included.
func (e *endpoint) drain() {
	e.mu.Lock()
	e.recallLocked()
	e.failure = nil
	e.settle(func(*conn) bool { return true })
}

// eject sends elsewhere the requests that wait for an answer and may be repeated.
func (e *endpoint) eject() {
	e.waiting.cancel(errEjected)
	if hear := e.up.ejected; hear != nil && e.via.Load() != nil {
		hear(e.address)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.ejected)
	e.ejected = make(chan struct{})
}

// remove drains an endpoint that is gone for good.
func (e *endpoint) remove() {
	e.mu.Lock()
	if !e.removed {
		e.removed = true
		close(e.changed)
		e.failLocked(&dialError{dialConnect, errGone})
	}
	e.settle(func(*conn) bool { return true })
}

// reap closes what was idle for too long.
func (e *endpoint) reap(now time.Time) {
	e.mu.Lock()
	e.settle(func(c *conn) bool { return c.inFlight == 0 && now.Sub(c.idle) >= idleTimeout })
}

// settle drains the connections that match. It is called with mu held, and gives it up before it closes any.
func (e *endpoint) settle(match func(*conn) bool) {
	var done []*conn
	for _, c := range slices.Clone(e.conns) {
		if match(c) {
			c.draining = true
			if e.settleLocked(c) {
				done = append(done, c)
			}
		}
	}
	e.mu.Unlock()
	for _, c := range done {
		c.discard()
	}
}
