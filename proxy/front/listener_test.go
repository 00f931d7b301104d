package front

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A port on all addresses is this process at each of them. Without a limit it has one.
func TestOwn(t *testing.T) {
	for host, all := range map[string]bool{"127.0.0.1": false, "0.0.0.0": true} {
		l := must.Get(Listen(t.Context(), Address{Host: host, Name: "front"}))(t)
		defer l.Close()
		own := must.Get(l.Own())(t)
		loopback := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.Addr().(*net.TCPAddr).Port))
		if !slices.Contains(own, loopback) || !all && len(own) != 1 {
			t.Errorf("%s: %v, want %v", host, own, loopback)
		}
		check.Same(t, minConnections, cap(l.places), "places of %s", host)
	}
}
