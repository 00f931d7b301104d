package health

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hedgeAfter is how long a probe may stay unanswered before a second runs in parallel, so that
	// two failed probes take little longer than one. After an alarm it is hedgeSuspicious.
	hedgeAfter, hedgeSuspicious = time.Second, 250 * time.Millisecond
	// atOneTime is how many claims are probed at one time on a connection: a thousand take 3 s over 50 ms.
	atOneTime = 16
	// oneByOne is how long a round may probe its claims one after the other, as over HTTP/1.1 or where a server closes
	// each connection after its response: half a defaultInterval. The others then get connections of their own.
	oneByOne = defaultInterval / 2
)

// finding is the result of one or more probes.
type finding struct {
	err       error // nil means passed
	failures  int
	undialled bool             // not even the dial succeeded, and trying again is cheap
	silent    bool             // there was no TLS connection in time
	http2     bool             // the answer came over HTTP/2
	latency   time.Duration    // from request to response head
	took      time.Duration    // dial and handshake included
	conn      *http.ClientConn // open, and owned by the receiver; nil after a failure, or if the round owns it
}

// probeConn is a connection, or the error of its dial.
type probeConn struct {
	finding
	once     sync.Once
	answered chan struct{} // closed at the first response, good or bad
	passed   atomic.Bool   // a claim has passed on it
	ends     atomic.Bool   // a response says that the connection closes. A request may come before that is noticed
}

func newProbeConn(f finding) *probeConn { return &probeConn{finding: f, answered: make(chan struct{})} }

func (l *probeConn) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.err != nil {
		return nil, l.err
	}
	resp, err := l.conn.RoundTrip(r)
	// http.Transport unwraps this error, as in kube-aggregator's message; http.ClientConn does not.
	const wrapped = "net/http: Transport failed to read from server: "
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), wrapped) {
		err = inner
	}
	if err == nil {
		if resp.Close {
			l.ends.Store(true)
		}
		l.once.Do(func() { close(l.answered) })
	}
	return resp, err
}

// spent reports whether the connection has answered, but ends, or takes fewer requests than room.
func (l *probeConn) spent(room int) bool {
	select {
	case <-l.answered:
		return l.ends.Load() || l.conn.Available() == 0 && l.conn.InFlight() < room
	default:
		return false
	}
}

// round probes claims on one connection that is dialled for it: nothing of an earlier connection can answer for the
// endpoint. The round owns the connection until it ends. It dials another where a server limits the requests of a
// connection. A failure of one claim there does not count against the others: where the connection is lost, or busy
// with unanswered requests, a claim is probed on a connection of its own.
type round struct {
	target  *target
	started time.Time
	after   time.Duration // how long to wait for a response before the hedge
	room    int           // how many concurrent requests the servers there have allowed
	shared  bool          // several claims are probed
	conns   []*probeConn  // the last one is in use
}

func (r *round) run(ctx context.Context, asked []*claim) {
	r.shared = len(asked) > 1
	l := r.dial(ctx, asked)
	var asks sync.WaitGroup
	done := make(chan struct{}, len(asked))
	running, most, answered, after := 0, r.room, l.answered, r.after
	stall := time.NewTimer(after)
	for i, c := range asked {
		late := time.Since(r.started) > oneByOne
		if late {
			most = max(most, atOneTime)
		}
		for running >= most {
			select {
			case <-done:
				running--
				after = r.after // some requests get answers
				stall.Reset(after)
			case <-answered:
				answered = nil
				r.room = max(1, min(l.conn.Available()+l.conn.InFlight(), atOneTime)) // SETTINGS came before it
				most = max(most, r.room)
			case <-stall.C:
				most += max(most, atOneTime) // where all requests hang, all claims are to be probed soon
				after = hedgeSuspicious
				stall.Reset(after)
			}
		}
		if !late && l.spent(r.room) {
			l = r.dial(ctx, asked[i:])
			most, answered = r.room, l.answered
		}
		running++
		on, after := l, after
		asks.Go(func() {
			f := r.find(ctx, c, on, after)
			if !r.target.deliver(ctx, func() { r.target.take(c, f, r.started) }) {
				closeConn(f.conn)
			}
			done <- struct{}{}
		})
	}
	asks.Wait()
	if !r.target.deliver(ctx, func() { r.target.end(r) }) {
		for _, l := range r.conns {
			closeConn(l.conn)
		}
	}
}

func (r *round) dial(ctx context.Context, asked []*claim) *probeConn {
	open := func(ctx context.Context) finding { return r.target.open(ctx, 0) }
	healthy := slices.ContainsFunc(asked, func(c *claim) bool { return c.failures == 0 })
	l := newProbeConn(hedge(ctx, r.after, healthy, open, open))
	r.conns = append(r.conns, l)
	return l
}

// find probes a claim until its verdict is clear.
func (r *round) find(ctx context.Context, c *claim, l *probeConn, after time.Duration) finding {
	if l.err != nil {
		return r.target.try(ctx, c, l)
	}
	return hedge(ctx, after, c.failures == 0, func(ctx context.Context) finding {
		f, clear := r.onShared(ctx, c, l)
		if !clear && ctx.Err() == nil {
			f = r.alone(ctx, c, f.took)
		}
		return f
	}, func(ctx context.Context) finding { return r.alone(ctx, c, 0) })
}

// onShared probes a claim on the connection of all. clear is false if the connection had no room,
// was lost or refused the request: that may be no fault of the claim.
func (r *round) onShared(ctx context.Context, c *claim, l *probeConn) (f finding, clear bool) {
	if l.conn.Reserve() != nil {
		return finding{}, false
	}
	f = r.target.try(ctx, c, l)
	if f.err == nil {
		l.passed.Store(true)
	}
	lost, ok := errors.AsType[*url.Error](f.err)
	return f, !r.shared || !ok || lost.Timeout()
}

// alone probes a claim on a connection of its own. elapsed is the part of the timeout already used.
func (r *round) alone(ctx context.Context, c *claim, elapsed time.Duration) finding {
	l := newProbeConn(r.target.open(ctx, elapsed))
	f := r.target.try(ctx, c, l)
	if f.err != nil || l.ends.Load() {
		closeConn(l.conn)
		return f
	}
	f.conn = l.conn
	return f
}

// hedge runs first, and in parallel second, when there is no result after a while and two failures
// would change a verdict. One pass is enough. After a quick failure comes the next round.
func hedge(ctx context.Context, wait time.Duration, changes bool, first, second func(context.Context) finding) finding {
	if !changes {
		return first(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	other := make(chan finding, 1)
	timer := time.AfterFunc(wait, func() {
		f := second(ctx)
		if f.err == nil {
			cancel() // the first is no longer needed, but still awaited
		}
		other <- f
	})
	f := first(ctx)
	if timer.Stop() {
		return f
	}
	if f.err == nil {
		cancel()
	}
	switch b := <-other; {
	case f.err == nil:
		closeConn(b.conn)
	case b.err == nil:
		return b
	default:
		f.failures += b.failures
	}
	return f
}
