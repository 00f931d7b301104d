//go:build unix

package front

import (
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A port on all addresses is this process at each of them. Without a limit of its own it has a
// share of the process's descriptors and memory.
func TestOwn(t *testing.T) {
	var limit syscall.Rlimit
	must.Do(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	lower := syscall.Rlimit{Cur: 300, Max: limit.Max}
	must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lower))
	defer func() { must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	check.Same(t, minConnections, Descriptors(0.01), "the least limit")
	for host, all := range map[string]bool{"127.0.0.1": false, "0.0.0.0": true} {
		l := must.Get(Listen(t.Context(), Address{Host: host, Name: "front", Share: 0.1}))(t)
		defer l.Close()
		own := must.Get(l.Own())(t)
		loopback := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.Addr().(*net.TCPAddr).Port))
		unspecified := netip.AddrPortFrom(netip.IPv4Unspecified(), loopback.Port())
		check.Same(t, true, slices.Contains(own, loopback) && (all || len(own) == 1) && slices.Contains(own, unspecified) == all, "%s: %v, want %v", host, own, loopback)
		check.Same(t, 30, cap(l.places), "places of %s", host)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(40 * 48 << 10))
	check.Same(t, 20, Connections(0.5), "connections of half of the memory")
	check.Same(t, minConnections, Connections(0.01), "the least limit")
}

// Without a word a client is away for as long as at kube-apiserver, whose listener asks nine times, after 3 min.
func TestAway(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front"}))(t)
	defer l.Close()
	client := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	conn := must.Get(l.Accept())(t)
	defer conn.Close()
	defer client.Close()
	raw := must.Get(conn.(*placed).Conn.(*net.TCPConn).SyscallConn())(t)
	var set [3]int
	must.Do(t, raw.Control(func(fd uintptr) {
		for i, name := range []int{syscall.TCP_KEEPIDLE, syscall.TCP_KEEPINTVL, syscall.TCP_KEEPCNT} {
			set[i] = must.Get(syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, name))(t)
		}
	}))
	check.Same(t, 3*60+9*15, set[0]+set[1]*set[2], "seconds until its connection ends")
}
