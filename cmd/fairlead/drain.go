package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// drainer ends serving so that no client sees an error: unready first, so that load balancers look elsewhere; then GOAWAY; then everything that is under way
// ends in its own time.
type drainer struct {
	// delay is how long to go on serving, unready.
	delay time.Duration
	// requests is how long requests get to finish, watches how long watches get before they are ended cleanly.
	requests, watches time.Duration
	// unready makes the readiness checks fail.
	unready func()
	// reject turns new requests away once the delay is over, on connections old and new, until underWay is 0. Nil: they are served as long as there is a
	// connection.
	reject   func()
	underWay func() int
	// endWatches and endSessions end what would last for ever; sessions counts the latter.
	endWatches, endSessions func()
	sessions                func() int
	// frames drains the frame lane's connections, which net/http only waits for.
	frames func(ctx context.Context, watches time.Duration) error
	log    *slog.Logger
}

// drain blocks until everything has ended or the time for it is over. It is called once, after the signal.
func (d *drainer) drain(front, admin *http.Server) {
	d.unready()
	d.log.Info("draining: unready", "delay", d.delay)
	time.Sleep(d.delay) //nolint:forbidigo // nothing is to be waited for but time: load balancers need it to notice
	watches := time.AfterFunc(d.watches, d.endWatches)
	defer watches.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), max(d.requests, d.watches+time.Second))
	defer cancel()
	if d.reject != nil {
		d.rejectNew(ctx)
	}
	d.log.Info("draining: no new connections", "sessions", d.sessions())
	var lanes errgroup.Group
	lanes.Go(func() error { return d.frames(ctx, d.watches) })
	lanes.Go(func() error { return front.Shutdown(ctx) })
	if err := lanes.Wait(); err != nil {
		d.log.Warn("draining: requests were cut", "err", err)
		_ = front.Close() // it was not clean already
	}
	if n := d.sessions(); n > 0 {
		d.log.Info("draining: ending upgraded sessions", "sessions", n)
		d.endSessions()
	}
	// The admin port goes last: it shows the drain.
	_ = admin.Close()
	d.log.Info("drained")
}

// rejectNew tells new requests to come back later until those under way have ended, or ctx ends. Without it a client that does not know of another replica
// finds nobody at the address in the meantime.
func (d *drainer) rejectNew(ctx context.Context) {
	d.log.Info("draining: rejecting new requests", "underWay", d.underWay())
	d.reject()
	const every = 20 * time.Millisecond // short against any request's time, long against the work of looking
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for d.underWay() > 0 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
