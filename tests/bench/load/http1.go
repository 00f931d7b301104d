package load

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"
)

// converse1 sends requests in sequence over HTTP/1.1.
func (c *conn) converse1() error {
	for {
		r := c.l.cfg.Next(c.index, c.asked)
		c.asked++
		began := time.Now()
		_, err := fmt.Fprintf(c.tls, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nUser-Agent: bench/1 (linux/amd64) kubernetes/unknown\r\nAuthorization: Bearer %s\r\n\r\n",
			r.Path, c.l.cfg.Address, r.Token)
		if err != nil {
			return fmt.Errorf("sending: %w", err)
		}
		res, err := http.ReadResponse(c.in, nil) //nolint:bodyclose // it is read to its end, and holds nothing else
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		if res.StatusCode != http.StatusOK || c.l.cfg.Size > 0 && int(n) != c.l.cfg.Size {
			return fmt.Errorf("status %d, a body of %d bytes", res.StatusCode, n)
		}
		c.count(began)
	}
}

func (c *conn) visit() error {
	for {
		began := time.Now()
		if err := c.l.cfg.Visit(c.l.ctx); err != nil {
			return err
		}
		c.count(began)
	}
}

// count counts a correct answer.
func (c *conn) count(began time.Time) {
	c.done.Add(1)
	if c.l.timed.Load() {
		c.mu.Lock()
		c.took = append(c.took, time.Since(began))
		c.mu.Unlock()
	}
}

func newConn1(l *Load, index int, t *tls.Conn) *conn {
	return &conn{l: l, index: index, tls: t, in: bufio.NewReaderSize(t, readBuffer)}
}
