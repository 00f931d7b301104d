//go:build !linux

package backend

import (
	"net"
	"time"
)

// expire bounds the silence of an HTTP/1.1 connection as far as keep-alive can; see the Linux version.
func expire(c net.Conn, ping time.Duration) {
	if ping <= 0 {
		ping = defaultPing
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		// An error means that the connection is closed.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: max(ping*2/5, time.Second), Interval: max(ping/5, time.Second), Count: 3})
	}
}
