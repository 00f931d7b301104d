//go:build unix

package h2

import (
	"crypto/tls"
	"net"
	"testing"
	"time"
)

// unread sees what has come to a socket.
func TestUnread(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	r := wrapConn(ours).(*rawConn)
	if r.unread() {
		t.Error("something waits before anything was sent")
	}
	if _, err := theirs.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !r.unread(); {
		if time.Now().After(deadline) {
			t.Fatal("what was sent is not seen")
		}
	}
}

// wrapped is a connection with the methods of a socket, by embedding.
type wrapped struct{ *net.TCPConn }

// transparent says that it does nothing to the bytes.
type transparent struct{ net.Conn }

func (t transparent) Wraps() net.Conn { return t.Conn }

// Nobody is gone round who has not said that it may be done.
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
