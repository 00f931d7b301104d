package main

import (
	"context"
	"time"
)

// lookReady is how often this process looks whether it is ready: soon against the seconds after which a load
// balancer notices, and long against the work of looking.
const lookReady = 250 * time.Millisecond

// shed sends clients away while this process is not ready, until ctx ends: behind a balancer of TCP connections
// nothing else moves them, and here they would get 503 for as long as their connection lasts. kube-apiserver does
// so when it ends. What is under way goes on, what is idle is closed, and new connections are served, each until
// its first answer: the balancer may not have noticed yet, or there may be nobody else. A local apiserver is not
// unhealthy before its second failed probe, so one that is lost moves nobody.
//
// A drain is not its business: that has an order of its own.
func (d *door) shed(ctx context.Context) error {
	tick := time.NewTicker(lookReady)
	defer tick.Stop()
	was := true
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if d.draining.Active() {
			continue
		}
		cause := d.ready.Err(nil)
		ready := cause == nil
		if ready != was {
			if ready {
				d.log.Info("ready")
			} else {
				d.log.Info("not ready: clients are sent elsewhere", "reason", cause)
			}
			d.front.SetKeepAlivesEnabled(ready) // HTTP/1.1: it also closes what is idle
			was = ready
		}
		if !ready {
			d.frames.SendAway()
		}
	}
}
