package extension

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

// connection is a TCP connection below TLS. The fault Freeze stops its reads and writes.
type connection struct {
	net.Conn
	faults   *faults
	onClose  func()
	once     sync.Once
	closed   chan struct{}       // closed by Close
	state    tls.ConnectionState // set once, before the first request
	verified bool                // the peer may assert X-Remote-*; set with state
}

var errFrozen = errors.New("connection closed while frozen")

// Read waits while the connection is frozen, even if it has already read data.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.wait() != nil {
		return 0, errFrozen
	}
	return n, err
}

// Write waits while the connection is frozen.
func (c *connection) Write(p []byte) (int, error) {
	if c.wait() != nil {
		return 0, errFrozen
	}
	return c.Conn.Write(p)
}

func (c *connection) wait() error {
	for {
		frozen, changed := c.faults.connects(Freeze)
		if !frozen {
			return nil
		}
		select {
		case <-changed:
		case <-c.closed:
			return errFrozen
		}
	}
}

// Close ends the connection gracefully; a second call does nothing.
func (c *connection) Close() error {
	var err error
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.closed)
		c.onClose()
	})
	return err
}

// rst ends the connection with a TCP reset.
func (c *connection) rst() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // discard unsent bytes: RST instead of FIN
	}
	c.Close()
}

// accept handles one connection until it is net/http's.
func (s *Server) accept(tcp net.Conn) {
	s.accepted.Add(1)
	c := &connection{Conn: tcp, faults: &s.faults, closed: make(chan struct{})}
	c.onClose = func() { s.listen.remove(c) }
	if !s.listen.add(c) {
		c.rst()
		return
	}
	s.wg.Go(func() { s.handshake(c) })
}

func (s *Server) handshake(c *connection) {
	if hangs, changed := s.faults.connects(HangConnect); hangs {
		select { // no answer to anything
		case <-changed:
		case <-c.closed:
		case <-s.ctx.Done():
		}
		c.rst()
		return
	}
	conn := tls.Server(c, s.tlsConfig())
	// Ten seconds: longer than clients' own limits, so that the client gives up first.
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	if conn.HandshakeContext(ctx) != nil {
		c.Close()
		return
	}
	c.state = conn.ConnectionState()
	c.verified = s.verify(&c.state)
	s.conns.give(newSession(conn, c))
}

// handover is the net.Listener that passes connections to net/http after their TLS handshake. For
// net/http they have no TLS, so that it accepts any type; it recognizes HTTP/2 by its preface.
type handover struct {
	conns chan net.Conn
	done  <-chan struct{} // of the Server
}

func (h *handover) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		c.Close()
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error   { return nil }
func (h *handover) Addr() net.Addr { return &net.TCPAddr{} }
