package backend

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/relay"
)

// faulty is a backend over HTTP/1.1: it reads the head of each request, counts it as executed, and
// then does what answer says.
type faulty struct {
	address  string
	executed atomic.Int64
}

// answer acts on one request; with false the connection is closed.
type answer func(f *faulty, c net.Conn) bool

func newFaulty(t *testing.T, act answer) *faulty {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	cert := s.TLS.Certificates[0]
	s.Close()
	l := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protoH1}}))(t)
	f := &faulty{address: l.Addr().String()}
	relay.Accept(t, l, func(_ context.Context, c net.Conn) {
		if err := f.serve(c, act); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			t.Logf("faulty backend: %v", err)
		}
	})
	return f
}

// serve reads heads without bodies.
func (f *faulty) serve(c net.Conn, act answer) error {
	var head []byte
	buf := make([]byte, 4096)
	for {
		for !bytes.Contains(head, []byte("\r\n\r\n")) {
			n, err := c.Read(buf)
			if err != nil {
				return err
			}
			head = append(head, buf[:n]...)
		}
		head = nil
		if !act(f, c) {
			return nil
		}
	}
}

// closeExecuted executes and closes the connection.
func closeExecuted(f *faulty, _ net.Conn) bool {
	f.executed.Add(1)
	return false
}

// garbage answers with something that is not HTTP.
func garbage(f *faulty, c net.Conn) bool {
	f.executed.Add(1)
	_, _ = io.WriteString(c, strings.Repeat("220 this is no HTTP ", 20)+"\r\n\r\n")
	return false
}
