package health

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// cable is a network in memory, which works in a bubble.
type cable struct {
	mu    sync.Mutex // guards hosts and dials
	hosts map[string]*host
	dials []dial
}

type dial struct {
	address string
	at      time.Time
}

// host is a process at an address of a cable.
type host struct {
	cable  *cable
	accept chan net.Conn
	mu     sync.Mutex // guards the fields below
	state  hostState
	ends   []*end
}

type hostState int

const (
	listening hostState = iota
	refusing
	vanished // packets are dropped
	closing  // each connection is closed at once
)

func newCable() *cable { return &cable{hosts: map[string]*host{}} }

func (c *cable) host(address string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &host{cable: c, accept: make(chan net.Conn, 4096)}
	c.hosts[address] = h
	return h
}

func (c *cable) dial(ctx context.Context, _, address string) (net.Conn, error) {
	c.mu.Lock()
	c.dials = append(c.dials, dial{address, time.Now()})
	h := c.hosts[address]
	c.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: addr(address), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	if h == nil {
		return nil, refused
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case refusing:
		return nil, refused
	case vanished:
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr(address), Err: os.ErrDeadlineExceeded}
	}
	near, far := newPipe()
	if h.state == closing {
		return near, far.Close()
	}
	h.ends = append(h.ends, near, far)
	h.accept <- far
	return near, nil
}

// dialled returns the times at which an address was dialled.
func (c *cable) dialled(address string) (at []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dials {
		if d.address == address {
			at = append(at, d.at)
		}
	}
	return at
}

// set changes the state of the host. A host that refuses has died: its connections are reset.
func (h *host) set(s hostState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = s
	for _, e := range h.ends {
		switch s {
		case refusing:
			e.reset()
		case vanished:
			e.cut()
		}
	}
	if s != listening {
		h.ends = nil
	}
}

// open counts the connections that the prober has not closed.
func (h *host) open() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.ends {
		if e.near && !e.in.closed() {
			n++
		}
	}
	return n
}

// Accept, Close and Addr implement net.Listener.
func (h *host) Accept() (net.Conn, error) {
	c, ok := <-h.accept
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (h *host) Close() error {
	h.set(refusing)
	close(h.accept)
	return nil
}

func (h *host) Addr() net.Addr { return addr("host") }

// serve runs an HTTPS server with a handler on a host until the test ends.
func (h *host) serve(t *testing.T, a authority, handler http.HandlerFunc) {
	t.Helper()
	h.serveAs(t, a, &http.Server{Handler: handler})
}

// serveAs runs a configured server.
func (h *host) serveAs(t *testing.T, a authority, s *http.Server) {
	t.Helper()
	s.ErrorLog, s.TLSConfig = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), &tls.Config{Certificates: []tls.Certificate{a.pair}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ServeTLS(h, "", "")
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
		synctest.Wait()
	})
}

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// stream is one direction of a connection: bytes, and its end. net.Pipe has no buffer, and TLS
// writes from both sides.
type stream struct {
	mu       sync.Mutex // guards the fields below
	changed  *sync.Cond
	data     []byte
	err      error // returned by Read after the data
	cut      bool
	deadline time.Time
	timer    *time.Timer
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) update(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.changed.Broadcast()
}

func (s *stream) end(err error) {
	s.update(func() {
		if s.err == nil {
			s.err = err
		}
		if s.timer != nil {
			s.timer.Stop()
		}
	})
}

func (s *stream) closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case s.err != nil && (s.cut || len(s.data) == 0):
			return 0, s.err
		case len(s.data) > 0 && !s.cut:
			n := copy(p, s.data)
			s.data = s.data[n:]
			return n, nil
		}
		s.changed.Wait()
	}
}

func (s *stream) setDeadline(d time.Time) {
	s.update(func() {
		s.deadline = d
		if s.timer != nil {
			s.timer.Stop()
		}
		if !d.IsZero() && s.err == nil {
			s.timer = time.AfterFunc(time.Until(d), s.changed.Broadcast)
		}
	})
}

// end is one side of a connection.
type end struct {
	in, out   *stream
	near      bool
	keepAlive net.KeepAliveConfig
}

func newPipe() (near, far *end) {
	a, b := newStream(), newStream()
	return &end{in: a, out: b, near: true}, &end{in: b, out: a}
}

func (e *end) reset() {
	err := &net.OpError{Op: "read", Net: "tcp", Source: addr("127.0.0.1:34567"), Addr: addr("host"), Err: syscall.ECONNRESET}
	e.in.end(err)
}

func (e *end) cut() { e.in.update(func() { e.in.cut = true }) }

func (e *end) Read(p []byte) (int, error) { return e.in.read(p) }

func (e *end) Write(p []byte) (int, error) {
	var err error
	e.out.update(func() {
		if e.out.err != nil {
			err = syscall.EPIPE
			return
		}
		e.out.data = append(e.out.data, p...)
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (e *end) Close() error {
	e.in.end(net.ErrClosed)
	e.out.end(io.EOF)
	return nil
}

func (e *end) SetKeepAliveConfig(c net.KeepAliveConfig) error { e.keepAlive = c; return nil }
func (e *end) LocalAddr() net.Addr                            { return addr("local") }
func (e *end) RemoteAddr() net.Addr                           { return addr("remote") }
func (e *end) SetWriteDeadline(time.Time) error               { return nil }
func (e *end) SetReadDeadline(d time.Time) error              { e.in.setDeadline(d); return nil }
func (e *end) SetDeadline(d time.Time) error                  { e.in.setDeadline(d); return nil }
