//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// lame is a peer that begins something and stalls, or almost.
type lame struct {
	name  string
	proto string        // what it negotiates; empty: no TLS at all
	say   string        // what it sends first
	drip  string        // what it sends again every half second until cut off
	bound time.Duration // for how long the connection lives
}

// slack allows for the ticks that enforce bounds, a second apart at most, and as much again for a
// busy machine.
const slack = 2 * time.Second

func lames() []lame {
	const (
		head = 32 * time.Second // kube-apiserver's ReadHeaderTimeout, also of the handshake
		h2   = 10 * time.Second // the engine's for prefaces and heads; net/http's for prefaces
		gone = 45 * time.Second // a PING after 30 s, and 15 s for its answer
		rest = 5 * time.Second  // for the rest of a body after the answer
		asks = 2 * time.Second  // the request's own timeout
	)
	post := func(fields string) string {
		return "POST " + target + "?timeout=2s HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n"
	}
	return []lame{
		{name: "no handshake", bound: head},
		{name: "half a head over HTTP/1.1", proto: "http/1.1", say: "GET / HTTP/1.1\r\nHost: x\r\n", drip: "X: y\r\n", bound: head},
		{name: "no preface over HTTP/2", proto: "h2", bound: h2},
		{name: "half a preface", proto: "h2", say: http2.ClientPreface[:10], bound: h2},
		{name: "no SETTINGS", proto: "h2", say: http2.ClientPreface, bound: h2},
		{name: "half a field block", proto: "h2", say: http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x01\x01\x01\x00\x00\x00\x01\x82", bound: h2},
		{name: "a body that drips", proto: "http/1.1", say: post("Content-Length: 100000\r\n"), drip: "x", bound: asks + rest},
		{name: "chunks that drip", proto: "http/1.1", say: post("Transfer-Encoding: chunked\r\n"), drip: "1\r\nx\r\n", bound: asks + rest},
		{name: "a body that nobody wants", proto: "http/1.1", say: strings.Replace(post("Authorization: Basic eDp5\r\nContent-Length: 100000\r\n"), target, "/nowhere", 1), drip: "x", bound: rest},
		{name: "a long body that stops", proto: "http/1.1", say: post("Content-Length: 100000\r\n") + strings.Repeat("x", 1000), bound: asks + rest},
	}
}

// testSlow opens several connections of each kind at once, and checks how long they live and what
// others notice.
func testSlow(t *testing.T, d *door) {
	const each = 20
	var all sync.WaitGroup
	defer all.Wait()
	type life struct {
		l    lame
		took time.Duration
		err  error
	}
	lives := make(chan life, each*len(lames()))
	c := d.endure(t, func() {
		for _, l := range lames() {
			for range each {
				all.Go(func() {
					took, err := d.outlive(t.Context(), l)
					lives <- life{l, took, err}
				})
			}
		}
		suite.Pause(t, time.Second) // their handshakes
	})
	t.Logf("%d slow peers: %s", cap(lives), c)
	c.held(t, 32*mib)
	shortest, longest := map[string]time.Duration{}, map[string]time.Duration{}
	for range cap(lives) {
		x := <-lives
		if x.err != nil {
			t.Errorf("%s: %v", x.l.name, x.err)
		}
		if one, ok := shortest[x.l.name]; !ok || x.took < one {
			shortest[x.l.name] = x.took
		}
		longest[x.l.name] = max(longest[x.l.name], x.took)
	}
	for _, l := range lames() {
		t.Logf("%s: cut after %s to %s, bound %s", l.name, shortest[l.name].Round(time.Millisecond), longest[l.name].Round(time.Millisecond), l.bound)
		if shortest[l.name] < l.bound-slack || longest[l.name] > l.bound+slack { // sooner than its bound, it was cut for another reason
			t.Errorf("%s: cut after %s to %s, want %s", l.name, shortest[l.name], longest[l.name], l.bound)
		}
	}
}

// outlive returns how long a lame peer's connection lives.
func (d *door) outlive(ctx context.Context, l lame) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 70*time.Second)
	defer cancel()
	begun := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", d.Front)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if l.proto != "" {
		as := d.w.as("lame")
		as.NextProtos, as.ServerName = []string{l.proto}, "localhost"
		t := tls.Client(conn, as)
		if err := t.HandshakeContext(ctx); err != nil {
			return 0, err
		}
		conn = t
		begun = time.Now()
	}
	if _, err := io.WriteString(conn, l.say); err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			return 0, err
		}
		if _, err := io.Copy(io.Discard, conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			return time.Since(begun), nil
		}
		if _, err := io.WriteString(conn, l.drip); err != nil {
			return time.Since(begun), nil
		}
	}
	return time.Since(begun), fmt.Errorf("the connection is still open")
}

// testSlowReaders has clients send many requests and read none of the answers.
func testSlowReaders(t *testing.T, d *door) {
	const (
		connections = 10
		requests    = 35        // lists of 100 KB on each: fewer than one APIService's limit, beyond which they would get 429
		limit       = 160 * mib // what all of them may buffer: less than everything, at most a window for each stream
		bound       = 45 * time.Second
	)
	var readers []net.Conn
	var begun time.Time
	c := d.endure(t, func() {
		begun = time.Now()
		for range connections {
			readers = append(readers, d.asksFrames(t, requests), d.asksLines(t, requests))
		}
	})
	t.Logf("%d connections that do not read: %s", len(readers), c)
	c.held(t, limit)
	suite.Pause(t, time.Until(begun.Add(bound+slack)))
	for i, r := range readers {
		must.Do(t, r.SetReadDeadline(time.Now().Add(5*time.Second)))
		// What is in the sockets still arrives; then the end, or the rest of the answers and
		// silence.
		if n, err := io.Copy(io.Discard, r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reader %d is still connected after %s; it received %d bytes", i, time.Since(begun).Round(time.Second), n)
		}
		_ = r.Close()
	}
}

// asksFrames sends requests over HTTP/2 and never reads, so the socket fills. All windows are open.
func (d *door) asksFrames(t *testing.T, n int) net.Conn {
	t.Helper()
	w, err := connect(t.Context(), d.Front, d.w.as("reader"), false, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	must.Do(t, err)
	err = w.fr.WriteWindowUpdate(0, 1<<30)
	for range n {
		if err == nil {
			_, err = w.ask("GET", target, true)
		}
	}
	must.Do(t, errors.Join(err, w.flush()))
	return w.tls.NetConn()
}

// asksLines pipelines requests over HTTP/1.1 and never reads.
func (d *door) asksLines(t *testing.T, n int) net.Conn {
	t.Helper()
	conn := d.rawBy(t, "reader", deaf())
	must.Get(io.WriteString(conn, strings.Repeat("GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n", n)))(t)
	return conn.NetConn()
}
