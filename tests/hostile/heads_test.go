//go:build e2e

package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// headAttack is an attack that makes a process keep what heads become, or answers.
type headAttack struct {
	name   string
	h2     bool
	fields []hpack.HeaderField
	ends   bool   // the head is complete
	body   bool   // and announces a body that never comes
	stream int    // heads of one connection
	path   string // a backend that hangs, or
	unread bool   // answers without end, and nobody reads
}

func repeated(n int, name, value string) []hpack.HeaderField {
	list := make([]hpack.HeaderField, n)
	for i := range list {
		list[i] = hpack.HeaderField{Name: name, Value: value}
		if strings.Contains(name, "%") {
			list[i].Name = fmt.Sprintf(name, i+4096)
		}
	}
	return list
}

func headAttacks() []headAttack {
	var list []headAttack
	for _, of := range []struct {
		name   string
		fields []hpack.HeaderField
	}{
		{"900 names", repeated(900, "n%x", "abcd")},
		{"equal fields", repeated(25000, "a", "b")},
		{"one long field", repeated(1, "x-long", strings.Repeat("v", 240<<10))},
		{"a megabyte", repeated(4200, "x-group", strings.Repeat("g", 200))},
	} {
		list = append(list,
			headAttack{name: of.name + ", unfinished", fields: of.fields, stream: 1},
			headAttack{name: of.name + ", the body is missing", fields: of.fields, ends: true, body: true, stream: 1},
			headAttack{name: of.name + ", the backend hangs", fields: of.fields, ends: true, stream: 1},
			headAttack{name: of.name + ", unfinished over HTTP/2", h2: true, fields: of.fields, stream: 1},
			headAttack{name: of.name + ", the backend hangs over HTTP/2", h2: true, fields: of.fields, ends: true, stream: 4})
	}
	return list
}

// TestHeads makes a process in a container keep as many heads as it takes: others are served, and it lives.
func TestHeads(t *testing.T) {
	for _, of := range []struct {
		room, sources int
	}{{256 * mib, 1}, {256 * mib, 16}, {2048 * mib, 16}} {
		t.Run(fmt.Sprintf("%d MiB, %d addresses", of.room/mib, of.sources), func(t *testing.T) {
			w := newWorld(t)
			w.contain(t, of.room)
			d := w.open(t)
			for _, h := range append(headAttacks(), headAttack{name: unread, ends: true, stream: 1, unread: true}, headAttack{name: unread + " over HTTP/2", h2: true, ends: true, stream: 1, unread: true}) {
				t.Run(h.name, func(t *testing.T) { d.keeps(t, h, of.sources) })
			}
		})
	}
}

const (
	headConns   = 1000
	unreadConns = 5000
	unread      = "5,000 answers that nobody reads"
)

func (d *door) keeps(t *testing.T, h headAttack, sources int) {
	h.path = target + "/hung"
	fault, conns := extension.Fault{Kind: extension.Hang, Path: h.path}, headConns
	if h.unread {
		fault, conns = extension.Fault{Kind: extension.HugeBody, Path: h.path, Size: 64 << 20}, unreadConns
	}
	must.Do(t, d.target.Set(fault))
	others := d.innocents()
	served := func() (n int) {
		for range 2 {
			for _, s := range others.window(t) {
				if s.Code == http.StatusOK && s.Err == nil {
					n++
				}
			}
		}
		return n
	}
	calm := served()
	before, _ := memory(t, d.Process.Pid)
	forgetPeak(t, d.Process.Pid)
	ctx, cancel := context.WithCancel(t.Context())
	var attackers, begun sync.WaitGroup
	slots := make(chan struct{}, 16)
	as := d.w.as("attacker")
	for i := range conns {
		begun.Add(1)
		attackers.Go(func() {
			slots <- struct{}{}
			leave := sync.OnceFunc(func() { <-slots; begun.Done() })
			defer leave()
			d.keep(ctx, h, as, fmt.Sprintf("127.0.0.%d", 2+i%sources), leave)
		})
	}
	begun.Wait()
	suite.Pause(t, 2*time.Second)
	attacked := served()
	suite.Pause(t, 3*time.Second)
	m, err := ask.Metrics(t.Context(), d.root, "https://"+d.Admin)
	now, peak := memory(t, d.Process.Pid)
	cancel()
	attackers.Wait()
	t.Logf("calm %d, attacked %d; RSS %d MiB before, %d now, peak %d; held %.0f MiB (%v), refused %v", calm, attacked, before/mib, now/mib, peak/mib, m["fairlead_memory_held_bytes"]/mib, err, m[`fairlead_memory_refused_total{what="head"}`])
	check.Same(t, true, float64(attacked) >= share*float64(calm), "%d of others' requests were served, of %d without the attack", attacked, calm)
	suite.Eventually(t, 20*time.Second, "the heads are forgotten", func() (bool, string) {
		m := must.Get(ask.Metrics(t.Context(), d.root, "https://"+d.Admin))(t)
		return m["fairlead_memory_held_bytes"] < mib, fmt.Sprint(m["fairlead_memory_held_bytes"])
	})
}

// keep sends heads until ctx ends. Errors are how the door defends itself.
func (d *door) keep(ctx context.Context, h headAttack, as *tls.Config, from string, sent func()) {
	if h.h2 {
		d.keepFrames(ctx, h, as, from, sent)
		return
	}
	as = as.Clone()
	as.NextProtos = []string{"http/1.1"}
	dialer := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: as}
	conn, err := dialer.DialContext(ctx, "tcp", d.Front)
	if err != nil {
		return
	}
	end := func() { _ = conn.(*tls.Conn).NetConn().Close() }
	defer end()                         // ctx may end this function before it calls what follows
	defer context.AfterFunc(ctx, end)() // a write may wait
	sent()
	out := bufio.NewWriterSize(conn, 16<<10)
	for range h.stream {
		_, _ = fmt.Fprintf(out, "GET %s HTTP/1.1\r\nHost: x\r\n", h.path)
		for _, f := range h.fields {
			_, _ = fmt.Fprintf(out, "%s:%s\r\n", f.Name, f.Value)
		}
		if h.body {
			_, _ = out.WriteString("Content-Length: 100\r\n")
		}
		if h.ends {
			_, _ = out.WriteString("\r\n")
		}
		_ = out.Flush()
	}
	<-ctx.Done()
}

func (d *door) keepFrames(ctx context.Context, h headAttack, as *tls.Config, from string, sent func()) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	w, err := connectBy(ctx, dialer, d.Front, as, true)
	if err != nil {
		return
	}
	defer w.close()
	sent()
	var fields []string
	for _, f := range h.fields {
		fields = append(fields, f.Name, f.Value)
	}
	for id := range uint32(h.stream) {
		_ = w.open(2*id+1, w.head("GET", h.path, fields...), !h.body, h.ends)
		_ = w.flush()
	}
	<-ctx.Done()
}
