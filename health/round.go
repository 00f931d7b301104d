package health

import (
	"context"
	"errors"
	"net/http"
	"net/url"
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
)

// finding is what probes found out.
type finding struct {
	err       error // nil: passed
	failures  int
	undialled bool             // not even the dial succeeded, and trying again is cheap
	latency   time.Duration    // from request to response head
	took      time.Duration    // dial and handshake included
	conn      *http.ClientConn // open, and the taker's; nil when it failed, or is somebody else's
}

// line is a connection, or why there is none.
type line struct {
	finding
	used   atomic.Bool // something was answered
	passed atomic.Bool // a claim has, and whoever took its finding has the connection
}

// RoundTrip sends a request.
func (l *line) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.err != nil {
		return nil, l.err
	}
	resp, err := roundTrip(l.conn, r)
	if err == nil {
		l.used.Store(true)
	}
	return resp, err
}

// round asks for claims on one connection that is dialled for it: nothing of an earlier one can answer for the endpoint. What happens there to one claim is nothing against
// the others: where the connection is lost, or busy with what is not answered, a claim is asked for on a connection of its own.
type round struct {
	target     *target
	apiService string        // whose trust it is; that of all is the same
	after      time.Duration // how long what stays unanswered is waited for
	line       *line
	stall      sync.Once
	stalled    chan struct{} // closed once a claim has stayed unanswered
}

var errUnasked = errors.New("another answer would not change the verdict")

func (r *round) run(ctx context.Context, asked []*claim) {
	r.line = r.dial(ctx, asked)
	width := 1
	if r.line.conn != nil {
		width = max(min(r.line.conn.Available(), atOneTime), 1)
	}
	free := make(chan struct{}, width+len(asked))
	for range width {
		free <- struct{}{}
	}
	var asks sync.WaitGroup
	for _, c := range asked {
		select {
		case <-free:
		case <-r.stalled:
		}
		asks.Go(func() {
			r.target.answer(ctx, answer{c, r.find(ctx, c)})
			free <- struct{}{}
		})
	}
	asks.Wait()
	if !r.line.passed.Load() {
		closeConn(r.line.conn)
	}
}

// dial opens the connection of all.
func (r *round) dial(ctx context.Context, asked []*claim) *line {
	open := func(ctx context.Context) finding { return r.target.open(ctx, r.apiService) }
	beside := func(context.Context) finding { return finding{err: errUnasked} }
	for _, c := range asked {
		if c.failures == 0 {
			beside = open
		}
	}
	return &line{finding: twice(ctx, r.after, open, beside)}
}

// find asks for a claim until its verdict is clear.
func (r *round) find(ctx context.Context, c *claim) finding {
	if r.line.err != nil {
		return r.target.try(ctx, c, r.line)
	}
	alone := func(ctx context.Context) finding {
		l := &line{finding: r.target.open(ctx, r.apiService)}
		f := r.target.try(ctx, c, l)
		if f.conn == nil {
			closeConn(l.conn)
		}
		return f
	}
	return twice(ctx, r.after, func(ctx context.Context) finding {
		if r.busy() {
			return alone(ctx)
		}
		f := r.target.try(ctx, c, r.line)
		if lost, ok := errors.AsType[*url.Error](f.err); ok && !lost.Timeout() && r.line.used.Load() && ctx.Err() == nil {
			return alone(ctx)
		}
		return f
	}, func(ctx context.Context) finding {
		r.stall.Do(func() { close(r.stalled) })
		if c.failures > 0 {
			return finding{err: errUnasked}
		}
		return alone(ctx)
	})
}

// busy reports whether the connection of all would keep a claim waiting, or is lost.
func (r *round) busy() bool {
	select {
	case <-r.stalled:
		return r.line.conn.Available() == 0
	default:
		return r.line.conn.Err() != nil
	}
}

// twice runs first, and second beside it when there is no result after a while. One that passes is enough. A quick failure is followed up by the next round, after a pause.
func twice(ctx context.Context, after time.Duration, first, second func(context.Context) finding) finding {
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
