package backend

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// expire makes the kernel end a connection whose peer has not acknowledged anything for about ping: HTTP/1.1 has no ping of its own, and a request on its way to a host
// that is gone would wait for its whole timeout.
func expire(c net.Conn, ping time.Duration) {
	if ping <= 0 {
		ping = defaultPing
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	// The first probe after two fifths of the time, then three more: 2 s and 3 × 1 s of the default. The kernel counts in seconds.
	err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: max(ping*2/5, time.Second), Interval: max(ping/5, time.Second), Count: 3})
	if err != nil {
		return // the connection is closed
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	// Data on its way is resent for so long, and no longer (RFC 5482).
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ping.Milliseconds()))
	})
}
