package relay

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Accept serves each connection of a listener, and closes it afterwards, or when the test ends.
func Accept(t *testing.T, l net.Listener, serve func(context.Context, net.Conn)) {
	t.Helper()
	var running sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				defer context.AfterFunc(t.Context(), func() { _ = c.Close() })()
				serve(t.Context(), c)
			})
		}
	})
}

// Join copies both ways between two connections until both have ended, or ctx ends. It reads a's bytes from from.
func Join(ctx context.Context, a, b net.Conn, from io.Reader) {
	defer b.Close()
	defer context.AfterFunc(ctx, func() { _, _ = a.Close(), b.Close() })()
	var ways sync.WaitGroup
	ways.Go(func() { pass(b, from) })
	pass(a, b)
	ways.Wait()
}

func pass(to net.Conn, from io.Reader) {
	_, _ = io.Copy(to, from) // tests may break the connection
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	} else {
		_ = to.Close()
	}
}
