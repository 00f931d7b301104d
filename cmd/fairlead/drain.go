package main

import (
	"context"
	"time"
)

// drain ends serving so that no client sees an error: unready first, so that load balancers look
// elsewhere; then GOAWAY; then everything that is under way ends in its own time. It blocks until
// everything has ended or the time for it is over, and is called once, after the signal.
func (d *door) drain() {
	d.leave()
	d.log.Info("draining: unready", "delay", d.o.shutdownDelay)
	time.Sleep(d.o.shutdownDelay) //nolint:forbidigo // nothing is to be waited for but time: load balancers need it to notice
	grace := d.o.watchGrace
	watches := time.AfterFunc(grace, d.proxy.EndLongRunning)
	defer watches.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), max(d.o.requestTimeout, grace+time.Second))
	defer cancel()
	if d.o.sendRetryAfter {
		d.rejectNew(ctx)
	}
	d.log.Info("draining: no new connections", "sessions", d.proxy.Sessions())
	if err := d.front.Shutdown(ctx, grace); err != nil {
		d.log.Warn("draining: requests were cut", "err", err)
	}
	if n := d.proxy.Sessions(); n > 0 {
		d.log.Info("draining: ending upgraded sessions", "sessions", n)
		d.proxy.EndSessions()
	}
	// The admin port goes last: it shows the drain.
	_ = d.admin.Close()
	d.log.Info("drained")
}

// rejectNew tells new requests to come back later, on connections old and new, until those under
// way have ended, or ctx ends. Without it a client that does not know of another replica finds
// nobody at the address in the meantime.
func (d *door) rejectNew(ctx context.Context) {
	d.log.Info("draining: rejecting new requests", "underWay", d.proxy.UnderWay())
	d.proxy.RejectNew()
	const every = 20 * time.Millisecond // short against any request's time, long against the work of looking
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for d.proxy.UnderWay() > 0 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
