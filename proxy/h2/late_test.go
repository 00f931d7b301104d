package h2

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
)

// A connection that arrives while Run ends, or later, is closed.
func TestServeWhileRunEnds(t *testing.T) {
	for range 100 {
		s := New(Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() { s.Serve(nil, tls.Server(ours, &tls.Config{}), nil) })
		cancel()
		running.Wait()
		if _, err := theirs.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is left open")
		}
		_ = theirs.Close()
	}
}
