package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// slowly is a connection that is read at 800 KB/s.
type slowly struct {
	net.Conn
	pace *time.Ticker
}

func (c slowly) Read(p []byte) (int, error) {
	<-c.pace.C
	return c.Conn.Read(p[:min(len(p), 16<<10)])
}

// The last response before GOAWAY reaches a slow client as a whole, although our socket accepted it
// long before: if that was closed while the client still sends frames, the kernel would answer with
// a reset, and drop the rest. Only the loop knows what the client has read.
func TestSlowReaderGetsItsLastResponse(t *testing.T) {
	t.Parallel() // it waits most of the time
	const size = 3 << 20
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("s"), size))
	}), func(_ *wire.Head, p *engine.Plan) { p.GoAway = true })
	raw := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", s.addr))(t)
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.(*net.TCPConn).SetReadBuffer(64 << 10)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	l := greet(t, tls.Client(slowly{raw, pace}, insecure()))
	must.Do(t, l.gets(1, "/"))
	got := 0
	for {
		f, err := l.fr.ReadFrame()
		must.Be(t, err == nil, "%d of %d bytes: %v", got, size, err)
		switch f := f.(type) {
		case *http2.PingFrame:
			err = l.fr.WritePing(true, f.Data)
		case *http2.DataFrame:
			got += len(f.Data())
			if err = l.fr.WriteWindowUpdate(0, f.Length); f.StreamEnded() {
				return
			}
		}
		must.Do(t, errors.Join(err, l.w.Flush()))
	}
}

// paused reports whether the loops have stopped reading a connection.
func (s *stand) paused() (some bool) {
	for _, sh := range s.server.shards {
		sh.loop.mu.Lock()
		for _, l := range sh.loop.links {
			some = some || l != nil && l.paused.Load()
		}
		sh.loop.mu.Unlock()
	}
	return some
}

// A client that does not read its answers is no longer read from, until it reads them. Others do not wait for it.
func TestPausedClientGoesOn(t *testing.T) { onDrivers(t, testPausedClient) }

func testPausedClient(t *testing.T, driver string) {
	const n = 3000 // more than the sockets of both sides can buffer
	s := newStand(t, driver, nil, func(_ *wire.Head, p *engine.Plan) {
		p.Forward, p.Answer = nil, &engine.Answer{Status: 200, Fields: []hpack.HeaderField{field(":status", "200"), field("x", strings.Repeat("x", 8<<10))}}
	}, func(c *Config) { c.Memory, c.Shards = hold.New(1<<30), 1 })
	c := s.greet()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	sent := make(chan error, 1)
	go func() { sent <- c.gets(n, "/"+strings.Repeat("long", 1100)) }() // too long for HPACK's table
	must.Soon(t, time.Minute, "nothing is read from it, for so much waits", s.paused)
	check.Same(t, 200, s.do("GET", "/", nil).StatusCode, "another client's answer meanwhile")
	for answers := 0; answers < n; {
		if f := must.Get(c.fr.ReadFrame())(t); f.Header().Type == http2.FrameHeaders {
			answers++
		}
	}
	must.Do(t, <-sent)
}

// lingering is a tunnel whose end takes time: that of an egress selector waits up to 10 s for its
// server (konnectivity's CloseTimeout).
type lingering struct {
	net.Conn
	closing, release chan struct{}
}

func (l lingering) Close() error {
	select {
	case l.closing <- struct{}{}:
	default:
	}
	<-l.release
	return l.Conn.Close()
}

// The end of a tunnel holds up no other connection of its shard.
func TestTunnelThatEndsSlowly(t *testing.T) {
	closing, release := make(chan struct{}, 1), make(chan struct{})
	s := newStand(t, "loop", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, func(c *Config) {
		c.Shards = 1
		c.Dial = func(ctx context.Context, ep *engine.Endpoint) (*tls.Conn, func(), error) {
			return dial(ctx, ep, func(c net.Conn) net.Conn { return lingering{c, closing, release} })
		}
	})
	defer close(release)
	check.Same(t, 200, s.do("GET", "/", nil).StatusCode, "status")
	s.backend.CloseClientConnections()
	<-closing
	check.Same(t, 200, s.do("GET", "/", nil).StatusCode, "status while the tunnel ends")
}
