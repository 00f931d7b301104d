package backend

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// The kernel closes a dead connection within the ping timeout.
func TestExpire(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer c.Close()
	unset := &Upstream{}
	unset.view.Store(&view{})
	for _, tt := range []struct {
		ping time.Duration
		want [4]int // user timeout in ms, idle, interval, count
	}{
		{unset.pingTimeout(), [4]int{5000, 2, 1, 3}},
		{20 * time.Second, [4]int{20_000, 8, 4, 3}},
		{time.Second, [4]int{1000, 1, 1, 3}},
	} {
		expire(c, tt.ping)
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var on int
		var got [4]int
		must.Do(t, raw.Control(func(fd uintptr) {
			for i, option := range []int{unix.TCP_USER_TIMEOUT, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
				if got[i], err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil {
					t.Error(err)
				}
			}
			on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		}))
		if got != tt.want || on == 0 || err != nil {
			t.Errorf("%v: got %v, want %v; keepalive %d, %v", tt.ping, got, tt.want, on, err)
		}
	}
}
