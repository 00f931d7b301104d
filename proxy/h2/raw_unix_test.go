//go:build unix

package h2

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// unread detects unread input of a socket.
func TestUnread(t *testing.T) {
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ours := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()))(t)
	defer ours.Close()
	theirs := must.Get(l.Accept())(t)
	defer theirs.Close()
	c := &engine.Conn{Value: &link{raw: wrapConn(ours).(*rawConn)}}
	if unread(c) {
		t.Error("unread input before anything was sent")
	}
	must.Get(theirs.Write([]byte("x")))(t)
	must.Soon(t, 10*time.Second, "what was sent is seen", func() bool { return unread(c) })
}

// wrapped is a connection that has a socket's methods by embedding.
type wrapped struct{ *net.TCPConn }

// transparent declares that it does not change the bytes.
type transparent struct{ net.Conn }

func (t transparent) Wraps() net.Conn { return t.Conn }

// A wrapper is bypassed only if it declares that it may be.
func TestWrapperIsNotPassedBy(t *testing.T) {
	tcp := &net.TCPConn{}
	for _, tt := range []struct {
		name string
		c    net.Conn
		want socket
	}{
		{"a socket", tcp, tcp},
		{"a wrapper that says nothing", wrapped{tcp}, nil},
		{"one that says so", transparent{tcp}, tcp},
		{"two", transparent{transparent{tcp}}, tcp},
		{"one around one that says nothing", transparent{wrapped{tcp}}, nil},
		{"TLS, which has bytes of its own", tls.Client(tcp, &tls.Config{InsecureSkipVerify: true}), nil},
	} {
		if got := socketOf(tt.c); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
