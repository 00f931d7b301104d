//go:build e2e

package incidents

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

func dependencies() []row {
	return []row{
		{
			name: "kube-apiserver dead", want: "^This replica takes no requests: local-apiserver.*refused", alerts: "FairleadNoLocalAPIServer", set: killed,
			more: map[string]string{"explain nodes": "(?i)local apiserver"},
		},
		{
			name: "half of the apiservers filtered", want: `10\.79\.2\.2`, alerts: "FairleadLocalAPIServerDown", set: filtered,
			more: map[string]string{"explain nodes": `10\.79\.2\.2`},
		},
		{name: "etcd of the registry away", want: "etcd", alerts: "FairleadCheckFailing", set: orphaned},
		{
			name: "DNS away", want: `explain v1\.named\.example\.com`, alerts: "FairleadBackendErrors", set: unnamed,
			more: map[string]string{"explain v1.named.example.com": "host name cannot be resolved"},
		},
	}
}

// The kube-apiservers that rows take away, each only one.
const (
	killable   = 1
	filterable = 2
)

const filteredAddress = "10.79.2.2" // that of the last one. Packets to it can be dropped.

func killed(t *testing.T, w *world) *incident {
	f := w.serveAt(t, w.EndpointOf(killable), "killed")
	part := w.APIServers[killable]
	return &incident{fronts: []*cluster.Front{f}, start: func(*testing.T) { part.Kill() }, mend: func(t *testing.T) { must.Do(t, part.Restart(t.Context())) }}
}

func filtered(t *testing.T, w *world) *incident {
	f := w.serve(t, "filtered", "--local-apiserver="+w.Endpoint().URL, "--local-apiserver="+w.EndpointOf(filterable).URL)
	const route = " " + filteredAddress + "/32 dev lo table local" // no longer one of this machine's, so nobody takes its packets
	return &incident{fronts: []*cluster.Front{f}, start: func(t *testing.T) { netns.IP(t, "route add"+route) }, mend: func(t *testing.T) { netns.IP(t, "route del"+route) }}
}

// orphaned is a Fairlead with a registry in an etcd of its own, and no kube-apiserver.
func orphaned(t *testing.T, shared *world) *incident {
	w := *shared
	w.Cluster = suite.Start(t, cluster.Config{Dir: suite.Folder(t, "orphaned"), APIServers: -1})
	w.fronts = must.Get(w.PKI.FrontProxy.Issue("front-proxy-long", cluster.Leaf{User: "front-proxy-client", NotAfter: inLong()}))(t)
	w.jane = cluster.Credentials{Pair: must.Get(w.PKI.Client.Issue("jane", cluster.Leaf{User: "jane", Groups: []string{"system:masters"}, NotAfter: inLong()}))(t)}
	w.scrapes = w.Admin()
	folder := t.TempDir()
	s := w.extension(t, "orphan", "")
	register(t, folder, "orphan", w.ca, "", s.URL())
	f := w.start(t, "orphan", w.Registry()+",dir:"+folder)
	return &incident{fronts: []*cluster.Front{f}, paths: []string{widgets("orphan")}, start: func(*testing.T) { w.Etcd.Kill() }, mend: func(t *testing.T) { must.Do(t, w.Etcd.Restart(t.Context())) }, world: &w}
}

const resolver = "127.0.0.53:53" // the address of the DNS server of these tests

// nameServer answers every question for an address with 127.0.0.1 while it is set. It ends with the test.
func nameServer(t *testing.T) (answers *atomic.Bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must.Do(t, os.WriteFile(file, []byte("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n"), 0o600))
	if out, err := exec.Command("mount", "--bind", file, "/etc/resolv.conf").CombinedOutput(); err != nil {
		t.Fatalf("mounting: %v\n%s", err, out)
	}
	conn := must.Get(net.ListenPacket("udp", resolver))(t)
	t.Cleanup(func() { _ = conn.Close() })
	answers = new(atomic.Bool)
	answers.Store(true)
	go func() { // ends with conn
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if !answers.Load() || m.Unpack(buffer[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
			}
			if text, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(text, from)
			}
		}
	}()
	return answers
}

func unnamed(t *testing.T, w *world) *incident {
	answers := nameServer(t)
	s := w.extension(t, "named", "")
	f, _ := w.registered(t, "named", "", fmt.Sprintf("https://named.example.com:%d", s.Port()))
	start := func(t *testing.T) { // its connections end, too: they would do without DNS
		answers.Store(false)
		must.Do(t, errors.Join(s.Set(extension.Fault{Kind: extension.Dead}), s.Set()))
	}
	return &incident{fronts: []*cluster.Front{f}, paths: []string{widgets("named")}, start: start, mend: func(*testing.T) { answers.Store(true) }}
}
