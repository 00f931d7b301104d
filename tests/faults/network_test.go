//go:build e2e

package faults

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

// nodeAddress is the node's own. The node has all of 10.78/16: each endpoint in this process has
// its own address there.
const nodeAddress = "10.78.0.1"

// network makes this process's namespace a node: its addresses, and a place for the names of its
// hosts' namespaces.
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

// host is a machine next to the node: a namespace connected to it.
type host struct {
	name    string
	address string
}

// addHost makes one.
func (w *world) addHost(t *testing.T) *host {
	t.Helper()
	n := w.hosts.Add(1)
	x := &host{name: fmt.Sprintf("host%d", n), address: fmt.Sprintf("10.77.%d.2", n)}
	ip(t, "netns add "+x.name)
	ip(t, fmt.Sprintf("link add veth%d type veth peer name eth0 netns %s", n, x.name))
	ip(t, fmt.Sprintf("addr add 10.77.%d.1/24 dev veth%d", n, n))
	ip(t, fmt.Sprintf("link set veth%d up", n))
	ip(t, "-n "+x.name+" link set lo up")
	ip(t, "-n "+x.name+" link set eth0 up")
	x.plug(t)
	// The node never resolves the host's link address, so packets also leave when the host is gone:
	// they are lost instead of reported as unreachable.
	link := strings.Fields(ip(t, "-n "+x.name+" -br link show dev eth0"))
	ip(t, fmt.Sprintf("neigh replace %s lladdr %s dev veth%d nud permanent", x.address, link[2], n))
	return x
}

// plug gives the host its address.
func (h *host) plug(t *testing.T) {
	t.Helper()
	ip(t, "-n "+h.name+" addr replace "+h.address+"/24 dev eth0")
}

// unplug drops every packet to and from the host, also of open connections, because the host no
// longer has the address. Its processes continue.
func (h *host) unplug(t *testing.T) {
	t.Helper()
	ip(t, "-n "+h.name+" addr del "+h.address+"/24 dev eth0")
}
