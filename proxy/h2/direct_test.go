package h2

import (
	"bytes"
	"errors"
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
	failed := func(err, want error) {
		t.Helper()
		check.Same(t, true, errors.Is(err, want), "failed with %v, want %v", err, want)
	}

	must.Do(t, ours.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := d.Read(buf)
	failed(err, os.ErrDeadlineExceeded)
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
	for err = nil; err == nil; { // until nothing fits
		n, err = d.Write(most)
	}
	check.Same(t, true, n < len(most), "written before the deadline: %d", n)
	failed(err, os.ErrDeadlineExceeded)

	must.Do(t, theirs.(*net.TCPConn).CloseWrite())
	_, err = d.Read(buf)
	failed(err, io.EOF)
	must.Do(t, ours.Close())
	_, err = d.Read(buf)
	failed(err, net.ErrClosed)

	other, _ := net.Pipe()
	check.Same(t, true, Direct(other) == other, "a connection without a socket stays as it is")
}
