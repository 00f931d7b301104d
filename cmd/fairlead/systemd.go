package main

import "github.com/coreos/go-systemd/v22/daemon"

// tellSystemd tells a unit of Type=notify (sd_notify(3)). Not under systemd, NOTIFY_SOCKET is empty
// and nothing is told.
func (d *door) tellSystemd(state string) {
	const keepEnvironment = false // nothing that we start would read it
	if _, err := daemon.SdNotify(keepEnvironment, state); err != nil {
		d.log.Warn("telling systemd", "state", state, "err", err)
	}
}
