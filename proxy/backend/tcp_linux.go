package backend

import (
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout limits how long unacknowledged data is resent, and a full window is probed (RFC
// 5482). An error means that the connection is closed.
func setUserTimeout(fd int, most time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(most.Milliseconds()))
}
