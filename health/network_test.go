package health

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// host is a machine at an address of a network in memory, which works in a bubble.
type host struct {
	*bufconn.Listener
	address string
	mu      sync.Mutex // guards the fields below
	state   string     // see set
	dials   []time.Time
	conns   []*conn // those that the host has not ended
}

func newHost(address string) *host {
	return &host{Listener: bufconn.Listen(64 << 10), address: address, state: "refusing"}
}

func (h *host) dial(ctx context.Context) (net.Conn, error) {
	h.mu.Lock()
	h.dials = append(h.dials, time.Now())
	state := h.state
	h.mu.Unlock()
	fault := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: name(h.address), Err: err}
	}
	switch state {
	case "refusing":
		return fault(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	case "vanished":
		<-ctx.Done()
		return fault(os.ErrDeadlineExceeded)
	case "unknown":
		return fault(&net.DNSError{Err: "no such host", IsNotFound: true})
	case "frozen":
		near, _ := net.Pipe()
		return newConn(near), nil
	case "closing":
		near, far := net.Pipe()
		return near, far.Close()
	case "distant":
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	near, err := h.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := newConn(near)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return c, nil
}

// Accept implements net.Listener.
func (h *host) Accept() (net.Conn, error) {
	far, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newConn(far), nil
}

// set changes the state: listening, distant (it takes long to dial), refusing (the process has
// died, and its connections with it), vanished (packets are dropped), lost (the same, and the
// kernel has noticed it, if it was told to look within 2 s), frozen (only its kernel answers),
// closing (each connection is closed at once), or unknown (its name has no address).
func (h *host) set(state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		switch state {
		case "refusing":
			_ = c.Conn.Close()
		case "vanished", "lost", "frozen":
			c.silent.Store(true)
			if k := c.keepAlive; state == "lost" && k.Enable && k.Idle+time.Duration(k.Count)*k.Interval <= 2*time.Second {
				_ = c.Conn.Close()
			}
		}
	}
	if state == "lost" {
		state = "vanished"
	}
	if h.state = state; state != "listening" {
		h.conns = nil
	}
}

// open counts the connections that the Prober has not closed.
func (h *host) open() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		select {
		case <-c.closed:
		default:
			n++
		}
	}
	return n
}

// dialled returns the times of all dials.
func (h *host) dialled() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.dials)
}

// conn is one side of a connection.
type conn struct {
	net.Conn
	silent    atomic.Bool               // packets from the host are lost
	until     atomic.Pointer[time.Time] // the deadline of reads; nil or zero means none
	once      sync.Once
	closed    chan struct{}
	keepAlive net.KeepAliveConfig
}

func newConn(c net.Conn) *conn { return &conn{Conn: c, closed: make(chan struct{})} }

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err == nil && c.silent.Load() {
			<-c.closed
			return 0, net.ErrClosed
		}
		if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
			return n, err
		}
		until := c.until.Load()
		if until != nil && !until.IsZero() && !time.Now().Before(*until) {
			return n, os.ErrDeadlineExceeded // after bufconn's own error crypto/tls would never read again
		}
		// bufconn's timer of an earlier deadline was late. net/http's server would take that for the client's end.
		_ = c.Conn.SetReadDeadline(time.Time{})
		if until != nil {
			_ = c.Conn.SetReadDeadline(*until)
		}
	}
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.until.Store(&t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *conn) SetKeepAliveConfig(k net.KeepAliveConfig) error {
	c.keepAlive = k
	return nil
}

type name string

func (name) Network() string  { return "tcp" }
func (n name) String() string { return string(n) }
