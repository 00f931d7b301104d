package extension

import (
	"bytes"
	"net"
	"net/http"
	"strings"
	"sync"
)

// maxHeaderBytes is the limit of a request's head: net/http's default.
const maxHeaderBytes = 1 << 20

// handover is the net.Listener that passes HTTP/1.1 connections to net/http.
type handover struct {
	conns chan net.Conn
	done  <-chan struct{} // of the server
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

// tap copies what is read, so that a request's head can be recorded as on the wire: net/http
// changes the case of names and loses their order.
type tap struct {
	net.Conn
	c *connection

	mu  sync.Mutex // guards buf; net/http reads while the handler runs
	buf []byte
}

// maxTap is how much of a head is kept: more than any honest one has.
const maxTap = 64 << 10

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf)+n > 2*maxTap { // keep the newest half
		t.buf = t.buf[:copy(t.buf, t.buf[max(len(t.buf)-maxTap, 0):])]
	}
	t.buf = append(t.buf, p[max(n-maxTap, 0):n]...)
	return n, err
}

// head removes and returns the head that begins with line; it is empty if the head was too long. An
// earlier body may precede it, and the next request may follow it.
func (t *tap) head(line string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := bytes.Index(t.buf, []byte(line))
	if i < 0 {
		return ""
	}
	head, rest, ok := bytes.Cut(t.buf[i:], []byte("\r\n\r\n"))
	if !ok {
		return ""
	}
	out := string(head)
	t.buf = t.buf[:copy(t.buf, rest)]
	return out
}

type tapKey struct{}

func (s *Server) serveH1(w http.ResponseWriter, r *http.Request) {
	t := r.Context().Value(tapKey{}).(*tap)
	r.TLS = &t.c.state
	fields := headFields(t.head(r.Method + " " + r.RequestURI + " HTTP/1."))
	s.serve(w, r, &exchange{conn: t.c, fields: fields})
}

func headFields(head string) []Field {
	var out []Field
	_, lines, _ := strings.Cut(head, "\r\n") // skip the request line
	for line := range strings.SplitSeq(lines, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			out = append(out, Field{Name: name, Value: strings.Trim(value, " \t")})
		}
	}
	return out
}
