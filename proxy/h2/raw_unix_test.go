//go:build unix

package h2

import (
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
