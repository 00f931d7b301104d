package main

import (
	"context"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// named is what every name resolves to while a test sets it, in the resolver that TestMain gives to
// this process: goroutines that a test leaves behind may still ask.
var named atomic.Pointer[net.IP]

// ownResolver resolves by named, or as the system does while that is nil.
func ownResolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if named.Load() == nil {
			return dialNameserver(ctx, network, address)
		}
		near, far := net.Pipe()
		go answers(far) // ends with its connection
		return near, nil
	}}
}

// Go's resolver gives up on a nameserver that does not answer, early enough to ask another one within a dial's time.
func TestDeadNameserver(t *testing.T) {
	dead := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer dead.Close()
	c := must.Get(dialNameserver(t.Context(), "udp", dead.LocalAddr().String()))(t)
	defer c.Close()
	must.Do(t, c.SetDeadline(time.Now().Add(time.Hour)))
	check.Is(t, os.ErrDeadlineExceeded, check.Err(c.Read(make([]byte, 1))), "an answer")
	_, packets := c.(net.PacketConn)
	check.Same(t, true, packets, "Go's resolver speaks UDP over it")
}

// answers answers questions of a resolver, each with its length before it, as over TCP.
func answers(c net.Conn) {
	defer c.Close()
	for {
		var n uint16
		if binary.Read(c, binary.BigEndian, &n) != nil {
			return
		}
		var m dnsmessage.Message
		text := make([]byte, n)
		if _, err := io.ReadFull(c, text); err != nil || m.Unpack(text) != nil {
			return
		}
		m.Response, m.Additionals = true, nil
		if q, to := m.Questions[0], named.Load(); q.Type == dnsmessage.TypeA && to != nil {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte(to.To4())}}}
		}
		text, _ = m.AppendPack(make([]byte, 2))
		binary.BigEndian.PutUint16(text, uint16(len(text)-2))
		_, _ = c.Write(text)
	}
}

// Of four URLs, one has a name, one an address, one no server, and one is this process itself, which is not even
// probed: a probe carries our certificate as system:masters. Each server is called by its own name, verified by it, and
// used. When the name resolves to a forbidden address, no packet goes there, and requests go to the remaining server,
// with a renewed client certificate, too.
func TestBackendsByURL(t *testing.T) {
	bind := func(ip string) { parsed := net.ParseIP(ip); named.Store(&parsed) }
	bind("127.0.0.1")
	t.Cleanup(func() { named.Store(nil) })
	d := aloneDoor(t, "--anonymous-auth", "--authorization-mode=AlwaysAllow")
	var shown atomic.Value // by the last request for things
	serve := func(name string) (port string) {
		s := serverAt(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
			if called := r.TLS.ServerName; called != name && net.ParseIP(name) == nil || called != "" && net.ParseIP(name) != nil {
				t.Errorf("%s is called %q for %s", name, called, r.URL.Path)
			}
			if strings.HasSuffix(r.URL.Path, "/things") {
				shown.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
			}
			_, _ = io.WriteString(w, name)
		}, name)
		_, port = must.Get2(net.SplitHostPort(s.Listener.Addr().String()))(t)
		return port
	}
	const byName, byAddress = "backend.example.com", "127.0.0.1"
	named := byName + ":" + serve(byName)
	_, own := must.Get2(net.SplitHostPort(d.ports.front.Addr().String()))(t)
	d.claim(t, "far.example.com", "https://"+named+",https://127.0.0.1:"+serve(byAddress)+",https://127.0.0.1:1,https://"+byName+":"+own)
	d.start(t)
	until := func(address, message string, healthy int) {
		t.Helper()
		must.Soon(t, 30*time.Second, address+" "+message, func() bool {
			i := slices.IndexFunc(d.registry.Table().Entries(), func(e *registry.Entry) bool { return !e.Local() })
			if i < 0 {
				return false
			}
			e, n, found := d.registry.Table().Entries()[i], 0, false
			for _, p := range e.Endpoints {
				if p.Health == registry.Healthy {
					n++
				}
				found = found || p.Address == address && p.Health == registry.Unhealthy && strings.Contains(p.Message, message)
			}
			return found && n == healthy && e.Verdict.Available()
		})
	}
	answered := func(http2 bool) map[string]int {
		t.Helper()
		by := map[string]int{}
		for range 50 { // a connection each, because one stays with a server
			c := clientOf(t, http2, nil)
			by[must.Get(ask.Get(t.Context(), c, urlOf(d.ports.front)+"/apis/far.example.com/v1/things"))(t)]++
		}
		return by
	}
	until(byName+":"+own, "is this server itself", 2)
	for _, http2 := range []bool{true, false} {
		check.Same(t, []string{byAddress, byName}, slices.Sorted(maps.Keys(answered(http2))), "HTTP/2 %v", http2)
	}
	bind("169.254.169.254")
	until(named, "169.254.169.254 is a link-local address", 1)
	for _, http2 := range []bool{true, false} {
		check.Same(t, map[string]int{byAddress: 50}, answered(http2), "HTTP/2 %v, after the name's address changed", http2)
	}
	must.Get2(ca.Issue(pki.Leaf{CommonName: "renewed", Names: []string{"localhost"}}).WriteFiles(filepath.Dir(d.o.Certs.ProxyClient.Cert), "front"))(t)
	must.Soon(t, 20*time.Second, "the renewed certificate is shown", func() bool {
		answered(true)
		return shown.Load() == "renewed"
	})

	// Nor do requests dial this process itself, if a name leads to it since the last probe.
	bind("127.0.0.1")
	d.claim(t, "loop.example.com", "https://"+byName+":"+own)
	must.Soon(t, 30*time.Second, "a dial for a request is refused", func() bool {
		for _, e := range d.registry.Table().Entries() {
			if e.Name == "v1.loop.example.com" {
				_, err := d.backends.Upstream(e).DialUpgrade(t.Context(), nil)
				return err != nil && strings.Contains(err.Error(), "is this server itself")
			}
		}
		return false
	})
}
