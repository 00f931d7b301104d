package main

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// recordTime limits the wait for the records of what the drain has cut: closing a connection whose
// peer does not read takes 5 s (crypto/tls).
const recordTime = 6 * time.Second

// drain ends serving so that no client sees an error: first not ready, so that load balancers stop
// sending; then GOAWAY; then requests in flight end in their own time. It blocks until all have
// ended or the time limit is over. It is called once, after the signal.
func (d *door) drain() {
	d.leave()
	d.log.Info("draining: unready", "delay", d.o.shutdownDelay)
	time.Sleep(d.o.shutdownDelay) //nolint:forbidigo // load balancers need this time to notice, and give no sign
	grace := d.o.watchGrace
	watches := time.AfterFunc(grace, d.proxy.EndLongRunning)
	defer watches.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), d.o.drainLimit())
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
	}
	last, stop := context.WithTimeout(context.Background(), recordTime)
	defer stop()
	d.proxy.EndSessions(last)
	// The admin port goes last: it shows the drain.
	_ = d.admin.Close()
	d.log.Info("drained")
}

// drainLimit is how long requests and watches under way may take to end.
func (o *options) drainLimit() time.Duration {
	return max(cmp.Or(o.requestTimeout, time.Minute), o.watchGrace+time.Second) // 0 is the default, as in the table
}

// rejectNew asks new requests to retry later (429), on old and new connections, until those in
// flight have ended or ctx ends. Without it, a client that knows no other replica finds the address
// closed in the meantime.
func (d *door) rejectNew(ctx context.Context) {
	d.log.Info("draining: rejecting new requests", "underWay", d.proxy.UnderWay())
	d.proxy.RejectNew()
	const every = 20 * time.Millisecond // short compared with a request, long compared with the cost of a look
	ended := func(context.Context) (bool, error) { return d.proxy.UnderWay() == 0, nil }
	_ = wait.PollUntilContextCancel(ctx, every, true, ended) // front.Shutdown reports what is left
}
