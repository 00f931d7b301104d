package h2

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// unread detects unread input of a socket.
func TestUnread(t *testing.T) {
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ours := must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()))(t)
	defer ours.Close()
	theirs := must.Get(l.Accept())(t)
	defer theirs.Close()
	raw := Wrap(ours).(*rawConn)
	must.Do(t, (&loop{sh: &shard{pool: &buffers{}}}).own(raw))
	if raw.unread() {
		t.Error("unread input before anything was sent")
	}
	must.Get(theirs.Write([]byte("x")))(t)
	must.Soon(t, 10*time.Second, "what was sent is seen", raw.unread)
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

// What TLS writes on its own is bounded if the peer does not take it. Output that is being
// encrypted, or waits for the socket, is no answer of TLS, however much it is.
func TestOutputIsNoAnswerOfTLS(t *testing.T) {
	raw, server, _, _ := heldTLS(t, tls.VersionTLS13)
	var full [2]int
	must.Do(t, syscall.Pipe2(full[:], syscall.O_NONBLOCK))
	defer func() { _, _ = syscall.Close(full[0]), syscall.Close(full[1]) }()
	for err := error(nil); err == nil; _, err = syscall.Write(full[1], make([]byte, 4<<10)) {
	}
	raw.fd = full[1] // takes nothing
	write := func(n int) { must.Get(server.Write(make([]byte, n)))(t) }
	write(maxOwn / 2)
	must.Do(t, raw.flushOwn())
	raw.reserve(2 * maxOwn)
	write(2 * maxOwn)
	must.Do(t, raw.flushOwn())
	done, err := raw.flushOr([]byte("output"))
	if done || err != nil || raw.flushOwn() != nil {
		t.Errorf("output that waits: done %v, %v, then %v", done, err, raw.flushOwn())
	}
	raw.pending = nil
	if err := raw.flushOwn(); !errors.Is(err, errOwnOutput) {
		t.Errorf("the rest is TLS's own: %v", err)
	}
}

// mute is a tunnel that takes nothing.
type mute struct{ net.Conn }

func (mute) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// A bridge carries both directions. It ends with its tunnel, and when that takes no more.
func TestBridge(t *testing.T) {
	for _, takes := range []bool{true, false} {
		var c net.Conn
		c, far := net.Pipe()
		if !takes {
			c = mute{c}
		}
		near := os.NewFile(uintptr(must.Get(bridge(c))(t)), "near")
		defer near.Close()
		_ = near.SetDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 2)
		go func() { _, _ = far.Write([]byte("in")) }() // ends with the pipe
		must.Get(io.ReadFull(near, buf))(t)
		must.Get(near.WriteString("up"))(t)
		if takes {
			must.Get(io.ReadFull(far, buf))(t)
			must.Do(t, far.Close())
		}
		if rest, err := io.ReadAll(near); err != nil || len(rest) > 0 {
			t.Errorf("takes output: %v: its end looks like %q, %v", takes, rest, err)
		}
	}
}

// A bridge holds a record for each direction: there may be one for each endpoint of 10,000 APIServices.
func TestBridgeHoldsLittle(t *testing.T) {
	const n = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		c, far := net.Pipe()
		near := os.NewFile(uintptr(must.Get(bridge(c))(t)), "near")
		defer near.Close()
		go func() { _, _ = far.Write([]byte("i")) }() // ends with the pipe
		must.Get(near.Read(make([]byte, 1)))(t)
		must.Get(near.WriteString("u"))(t)
		must.Get(far.Read(make([]byte, 1)))(t)
		must.Do(t, far.Close())
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 3*recordContent {
		t.Errorf("%d bytes for a bridge", each)
	}
}
