package extension

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
)

// connection is a TCP connection below TLS. The fault Freeze stops its reads and writes.
type connection struct {
	net.Conn
	id       uint64
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
	for c.faults.connects(Freeze) {
		changed := c.faults.changed() // before the check, so that no change is missed
		if !c.faults.connects(Freeze) {
			return nil
		}
		select {
		case <-changed:
		case <-c.closed:
			return errFrozen
		}
	}
	return nil
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
