package main

import (
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// lookUnready is how often this process looks whether it is ready while it is not: soon against the start of whatever is ordered after this unit, and long against the
// work of looking. lookReady is how often it looks while it is, unless a local apiserver has something new to say: soon against the seconds after which a load balancer notices.
const lookUnready, lookReady = 250 * time.Millisecond, time.Second

// followReadiness tells systemd when this process is first ready, and sends clients away while it
// is not, until ctx ends: behind a balancer of TCP connections nothing else moves them, and here
// they would get 503 for as long as their connection lasts. kube-apiserver does so when it ends.
// New connections are served, each until its first answer: the balancer may not have noticed yet,
// or there may be nobody else. A local apiserver is not unhealthy before its second failed probe,
// so one that is lost moves nobody.
//
// Fairlead's own connections leave local apiservers that are ill by the way.
//
// A drain is not its business: that has an order of its own.
func (d *door) followReadiness(ctx context.Context) error {
	tick := time.NewTicker(lookUnready)
	defer tick.Stop()
	was, told := true, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-d.localNews:
		}
		if d.own != nil {
			d.own.prefer(d.localServers())
		}
		if d.draining.Active() {
			continue
		}
		cause := d.ready.Err(nil)
		ready := cause == nil
		if ready && !told {
			d.tellSystemd(daemon.SdNotifyReady)
			told = true
		}
		every := lookUnready
		if ready {
			every = lookReady
		}
		tick.Reset(every)
		if ready != was {
			if ready {
				d.log.Info("ready")
			} else {
				d.log.Info("not ready: clients are sent elsewhere", "reason", cause)
			}
			was = ready
		}
		d.front.Keep(ready)
	}
}
