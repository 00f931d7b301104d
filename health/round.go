package health

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hedgeAfter is how long a probe may stay unanswered before a second one runs beside it, so that two failed probes take little longer
	// than one. Sooner when there is a suspicion already.
	hedgeAfter, hedgeSuspicious = time.Second, 250 * time.Millisecond
	// atOneTime is how many claims are asked for at one time on a connection: a thousand take 3 s where an endpoint is 50 ms away.
	atOneTime = 16
	// oneByOne is how long it may take to ask for one claim after the other, as over HTTP/1.1 or where a server ends each connection after its answer: half a
	// defaultInterval. What is left then is asked for on connections of its own.
	oneByOne = defaultInterval / 2
)

// finding is what probes found out.
type finding struct {
	err       error // nil: passed
	failures  int
	undialled bool             // not even the dial succeeded, and trying again is cheap
	latency   time.Duration    // from request to response head
	took      time.Duration    // dial and handshake included
	conn      *http.ClientConn // open, and the taker's; nil when it failed, or is its round's
}

// line is a connection, or why there is none.
type line struct {
	finding
	once     sync.Once
	answered chan struct{} // closed at the first response, whatever it says
	passed   atomic.Bool   // a claim has
}

func newLine(f finding) *line { return &line{finding: f, answered: make(chan struct{})} }

// RoundTrip sends a request.
func (l *line) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.err != nil {
		return nil, l.err
	}
	resp, err := roundTrip(l.conn, r)
	if err == nil {
		l.once.Do(func() { close(l.answered) })
	}
	return resp, err
}

// spent reports whether something was answered, and nothing more can be asked though fewer are than the server has room for.
func (l *line) spent(room int) bool {
	select {
	case <-l.answered:
		return l.conn.Available() == 0 && l.conn.InFlight() < room
	default:
		return false
	}
}

// round asks for claims on one connection that is dialled for it: nothing of an earlier one can answer for the endpoint. It is the round's until its end, and another is
// dialled where a server answers so many questions only. What happens there to one claim is nothing against the others: where the connection is lost, or busy with what is
// not answered, a claim is asked for on a connection of its own.
type round struct {
	target  *target
	started time.Time
	after   time.Duration // how long what stays unanswered is waited for first
	room    int           // for how many questions at one time servers there have had
	shared  bool          // several are asked for
	lines   []*line       // the last one is asked on
}

func (r *round) run(ctx context.Context, asked []*claim) {
	r.shared = len(asked) > 1
	l := r.dial(ctx, asked)
	var asks sync.WaitGroup
	done := make(chan struct{}, len(asked))
	running, most, answered, after := 0, r.room, l.answered, r.after
	stall := time.NewTimer(after)
	defer stall.Stop()
	for i, c := range asked {
		late := time.Since(r.started) > oneByOne
		if late {
			most = max(most, atOneTime)
		}
		for running >= most {
			select {
			case <-done:
				running--
				stall.Reset(after)
			case <-answered:
				answered = nil
				r.room = max(1, min(l.conn.Available()+l.conn.InFlight(), atOneTime)) // it has said so before it answered
				most = max(most, r.room)
			case <-stall.C:
				// Where all hang all are asked for soon.
				most += max(most, atOneTime)
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
			if !r.target.hear(ctx, func() { r.target.take(c, f, r.started) }) {
				closeConn(f.conn)
			}
			done <- struct{}{}
		})
	}
	asks.Wait()
	if !r.target.hear(ctx, func() { r.target.end(r) }) {
		for _, l := range r.lines {
			closeConn(l.conn)
		}
	}
}

// dial opens a connection for all that are asked for.
func (r *round) dial(ctx context.Context, asked []*claim) *line {
	open := func(ctx context.Context) finding { return r.target.open(ctx, 0) }
	l := newLine(twice(ctx, r.after, slices.ContainsFunc(asked, func(c *claim) bool { return c.failures == 0 }), open, open))
	r.lines = append(r.lines, l)
	return l
}

// find asks for a claim until its verdict is clear.
func (r *round) find(ctx context.Context, c *claim, l *line, after time.Duration) finding {
	if l.err != nil {
		return r.target.try(ctx, c, l)
	}
	return twice(ctx, after, c.failures == 0, func(ctx context.Context) finding {
		f, clear := r.onLine(ctx, c, l)
		if !clear && ctx.Err() == nil {
			f = r.alone(ctx, c, f.took)
		}
		return f
	}, func(ctx context.Context) finding { return r.alone(ctx, c, 0) })
}

// onLine asks on the connection of all. What that had no room for, lost or refused to take may be no fault of the claim's.
func (r *round) onLine(ctx context.Context, c *claim, l *line) (f finding, clear bool) {
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

// alone asks on a connection of the claim's own, of whose time so much is gone already.
func (r *round) alone(ctx context.Context, c *claim, gone time.Duration) finding {
	l := newLine(r.target.open(ctx, gone))
	f := r.target.try(ctx, c, l)
	if f.err != nil {
		closeConn(l.conn)
		return f
	}
	f.conn = l.conn
	return f
}

// twice runs first, and second beside it when there is no result after a while and two failures would change a verdict. One that passes is enough. A quick failure is followed
// up by the next round, after a pause.
func twice(ctx context.Context, after time.Duration, changes bool, first, second func(context.Context) finding) finding {
	if !changes {
		return first(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside := make(chan finding, 1)
	timer := time.AfterFunc(after, func() {
		f := second(ctx)
		if f.err == nil {
			cancel() // the first is no longer needed; it is still awaited
		}
		beside <- f
	})
	f := first(ctx)
	if timer.Stop() {
		return f
	}
	if f.err == nil {
		cancel()
	}
	switch b := <-beside; {
	case f.err == nil:
		closeConn(b.conn)
	case b.err == nil:
		return b
	default:
		f.failures += b.failures
	}
	return f
}
