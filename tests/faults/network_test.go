//go:build e2e

package faults

import (
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

// nodeAddress is the node's own. All of 10.78/16 is: each endpoint in this process has an address
// of its own there.
const nodeAddress = "10.78.0.1"

// network makes the namespace that this process is in a node: its addresses, and a place for the
// names of its hosts' namespaces.
func network(t *testing.T) {
	t.Helper()
	netns.Hide(t, "/run/netns") // where ip netns keeps them
	netns.Up(t, "10.78.0.0/16")
}

// ip runs iproute2.
func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// host is a machine beside the node: a namespace with a cable to it.
type host struct {
	name    string
	address string
}

// hosts counts them; a host is cabled once and never taken away.
type hosts struct{ n atomic.Int32 }

func (h *hosts) add(t *testing.T) *host {
	t.Helper()
	n := h.n.Add(1)
	x := &host{name: fmt.Sprintf("host%d", n), address: fmt.Sprintf("10.77.%d.2", n)}
	ip(t, "netns add "+x.name)
	ip(t, fmt.Sprintf("link add veth%d type veth peer name eth0 netns %s", n, x.name))
	ip(t, fmt.Sprintf("addr add 10.77.%d.1/24 dev veth%d", n, n))
	ip(t, fmt.Sprintf("link set veth%d up", n))
	ip(t, "-n "+x.name+" link set lo up")
	ip(t, "-n "+x.name+" link set eth0 up")
	x.plug(t)
	// The node never asks for the host's link address, so that its packets leave also when nobody
	// is there: they vanish rather than come back as unreachable.
	link := strings.Fields(ip(t, "-n "+x.name+" -br link show dev eth0"))
	ip(t, fmt.Sprintf("neigh replace %s lladdr %s dev veth%d nud permanent", x.address, link[2], n))
	return x
}

// plug gives the host its address.
func (h *host) plug(t *testing.T) {
	t.Helper()
	ip(t, "-n "+h.name+" addr replace "+h.address+"/24 dev eth0")
}

// unplug makes every packet to and from the host vanish, those of open connections too: to the host
// they are for somebody else. Its processes go on.
func (h *host) unplug(t *testing.T) {
	t.Helper()
	ip(t, "-n "+h.name+" addr del "+h.address+"/24 dev eth0")
}
