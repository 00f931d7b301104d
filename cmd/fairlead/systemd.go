package main

import (
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// readyPoll is how often readiness is looked at until systemd was told of it: short against the start of
// whatever is ordered after this unit, long against the work of looking.
const readyPoll = 50 * time.Millisecond

// tellReady tells systemd READY=1 (sd_notify(3), Type=notify) when this process is first ready, then ends.
// Not under systemd, NOTIFY_SOCKET is empty and nothing is told.
func (d *door) tellReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for d.ready.Err(nil) != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	d.tellSystemd(daemon.SdNotifyReady)
	return nil
}

func (d *door) tellSystemd(state string) {
	const keepEnvironment = false // nothing that we start would read it
	if _, err := daemon.SdNotify(keepEnvironment, state); err != nil {
		d.log.Warn("telling systemd", "state", state, "err", err)
	}
}
