package h2

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func sockets(t *testing.T) (ours, theirs net.Conn) {
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	ours = must.Get(new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()))(t)
	theirs = must.Get(l.Accept())(t)
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// Direct is like the connection: it waits, writes all, heeds deadlines, and its errors are what net/http knows.
func TestDirect(t *testing.T) {
	ours, theirs := sockets(t)
	d, buf := Direct(ours), make([]byte, 16)

	must.Do(t, ours.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	check.Is(t, os.ErrDeadlineExceeded, check.Err(d.Read(buf)), "a read without input")
	must.Do(t, ours.SetReadDeadline(time.Time{}))
	go func() { _, _ = theirs.Write([]byte("later")) }() // ends with the connection
	n := must.Get(d.Read(buf))(t)
	check.Same(t, "later", string(buf[:n]), "read")

	most := bytes.Repeat([]byte("0123456789"), 1<<20) // more than the kernel buffers
	got := make(chan []byte, 1)
	go func() { all, _ := io.ReadAll(io.LimitReader(theirs, int64(len(most)))); got <- all }()
	check.Same(t, len(most), must.Get(d.Write(most))(t), "written")
	check.Same(t, true, bytes.Equal(most, <-got), "what was written has come")
	must.Do(t, ours.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	var err error
	for err == nil { // until nothing fits
		n, err = d.Write(most)
	}
	check.Same(t, true, n < len(most), "written before the deadline: %d", n)
	check.Is(t, os.ErrDeadlineExceeded, err, "a write that nobody reads")

	must.Do(t, theirs.(*net.TCPConn).CloseWrite())
	check.Is(t, io.EOF, check.Err(d.Read(buf)), "a read at the end")
	must.Do(t, ours.Close())
	check.Is(t, net.ErrClosed, check.Err(d.Read(buf)), "a read of what is closed")

	other, _ := net.Pipe()
	check.Same(t, true, Direct(other) == other, "a connection without a socket stays as it is")
}
