package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// CONNECT reaches no backend. Over HTTP/2 a backend would get it without a path, which differs from
// the authorized request.
func TestConnect(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		for _, target := range []string{remoteGV + "/widgets", "/api/v1/namespaces/a/pods/b/proxy/", "10.0.0.1:22"} {
			res, _, _ := w.raw(t, "CONNECT "+target, "Connection: close\r\n\r\n")
			check.Same(t, [2]int{http.StatusMethodNotAllowed, 0}, [2]int{res.StatusCode, w.remote.count() + w.local.count()}, "%s: status, and requests that arrived", target)
		}
	})
}

// The audit log has no text of a client instead of an address, whatever a front proxy passes on,
// and not more addresses than a chain of proxies has: the nearest, which a client cannot choose.
func TestSourceIPs(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for field, want := range map[string]string{
		"": "10.0.0.1", "203.0.113.7, ::1": "203.0.113.7 ::1 10.0.0.1", long + " , 203.0.113.7,": "203.0.113.7 10.0.0.1", "fe80::1%" + long: "10.0.0.1",
		strings.Repeat("1.2.3.4,", 100) + "203.0.113.7": strings.Repeat("1.2.3.4 ", maxSources-1) + "203.0.113.7 10.0.0.1",
		"192.0.2.1,\n192.0.2.2\n203.0.113.7":            "192.0.2.1 192.0.2.2 203.0.113.7 10.0.0.1",
		"10.0.0.1, 203.0.113.7, ::ffff:10.0.0.1":        "10.0.0.1 203.0.113.7 10.0.0.1",
	} {
		h := &Head{RemoteIP: "10.0.0.1"}
		for line := range strings.SplitSeq(field, "\n") {
			h.Fields = append(h.Fields, hpack.HeaderField{Name: "x-forwarded-for", Value: line})
		}
		d := &Decision{}
		check.Same(t, "10.0.0.1", strings.Join(sourceIPs(h, d), " "), "%.40q of a stranger", field)
		d.Credentials.Kind = authn.KindFrontProxy
		check.Same(t, want, strings.Join(sourceIPs(h, d), " "), "%.40q", field)
	}
}

// A chain without end is cut.
func TestLongChain(t *testing.T) {
	p, long := &Proxy{instance: "this"}, strings.Repeat("x", maxVia-1)
	for via, want := range map[string]string{long: long + ", this", long + "x": "this"} {
		h := &Head{Head: wire.Head{Fields: authn.Head{{Name: loopHeader, Value: via}}}}
		set := &Head{Head: wire.Head{Fields: p.forwarded(nil, h, true)}}
		check.Same(t, want, set.get(loopHeader), "the next chain after %d bytes", len(via))
	}
}

// A client's audit ID is taken if kube-apiserver would not shorten it. Ours stays out of HPACK's tables.
func TestAuditIDs(t *testing.T) {
	for _, n := range []int{0, 1, maxAuditID, maxAuditID + 1} {
		h := &Head{Head: wire.Head{Fields: authn.Head{{Name: auditHeader, Value: strings.Repeat("x", n)}}}}
		x := &exchange{p: &Proxy{}, head: h}
		x.startRecords()
		set, id := x.decision.Set, x.auditID
		taken := n > 0 && n <= maxAuditID
		check.Same(t, true, len(set) == 1 && set[0].Value == id && set[0].Sensitive != taken && (!taken || id == h.Fields[0].Value) && (taken || uuid4.MatchString(id)), "of %d bytes: %q, set %v", n, id, set)
	}
}

// The names that Connection lists are those of fields: its other tokens concern the connection.
func TestListedNames(t *testing.T) {
	for lines, want := range map[string]string{
		"close, X-A, ,;keep-alive,x-b, Upgrade ,X-C": "map[x-a:true x-b:true x-c:true] true", "": "map[] true",
		strings.Repeat("a,", maxListed/2) + ";" + strings.Repeat(",", maxListed/2-2): "map[a:true] true",
		strings.Repeat("a,", maxListed/2) + ";" + strings.Repeat(",", maxListed/2-1): "map[] false", strings.Repeat(";", maxListed): "map[] false",
	} {
		names, err := listed(strings.Split(lines, ";"))
		check.Same(t, want, fmt.Sprint(names, err == nil), "%q lists", lines)
	}
}

// CVE-2018-1002105: after a backend refused an upgrade, kube-apiserver left the connection to it
// open for further input of the client, with the proxy's own identity.
func TestCVE20181002105(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upgrade here", http.StatusForbidden) }
	for name, prefix := range map[string]string{"remote": remoteGV, "local": "/api/v1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldConfig{remote: refuse, local: refuse})
			smuggled := "GET " + remoteGV + "/secrets HTTP/1.1\r\nHost: x\r\nX-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n\r\n"
			// Sent at once, so that the second request is there before the answer to the first.
			res, br, _ := w.raw(t, "POST "+prefix+"/namespaces/a/pods/b/exec", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"+smuggled)
			body, _ := io.ReadAll(res.Body)
			check.Same(t, "403 no upgrade here\n", fmt.Sprint(res.StatusCode, " ", string(body)), "the answer")
			// The connection ends, and the second request gets no answer.
			rest, err := io.ReadAll(br)
			check.Same(t, true, err != nil || len(rest) == 0, "nothing comes after the refusal: %q", rest)
			for _, f := range []*far{w.remote, w.local} {
				f.mu.Lock()
				defer f.mu.Unlock()
				arrived := slices.ContainsFunc(f.got, func(in received) bool { return strings.Contains(in.target, "secrets") })
				check.Same(t, false, arrived, "the second request has arrived")
			}
		})
	}
}

// A backend that refuses an upgrade and never ends its answer is cut off after refusalTimeout.
func TestRefusalThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		go func() { _, _ = io.WriteString(far, "HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\n\r\nno") }()
		res := must.Get(http.ReadResponse(bufio.NewReader(near), nil))(t)
		res.Body = &refusal{res.Body, near, func() {}}
		begun := time.Now()
		defer func() {
			cut, _ := recover().(error)
			check.Same(t, true, errors.Is(cut, http.ErrAbortHandler) && time.Since(begun) == refusalTimeout, "after %v: %v", time.Since(begun), cut)
		}()
		p := &Proxy{log: slog.New(slog.DiscardHandler), frames: &frames{memory: hold.New(0)}, copies: sync.Pool{New: func() any { return new(make([]byte, 8)) }}}
		(&exchange{p: p}).relay(httptest.NewRecorder(), res)
	})
}
