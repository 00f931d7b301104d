package main

import "github.com/coreos/go-systemd/v22/daemon"

// tellSystemd notifies systemd of a unit with Type=notify (sd_notify(3)). Without systemd
// NOTIFY_SOCKET is empty and it does nothing.
func (d *door) tellSystemd(state string) {
	const keepEnvironment = false // no child process reads NOTIFY_SOCKET
	if _, err := daemon.SdNotify(keepEnvironment, state); err != nil {
		d.log.Warn("telling systemd", "state", state, "err", err)
	}
}
