package main

import (
	"bytes"
	"context"
	"net"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/try"
)

// startRelay listens for who has a long way to an address: what comes is passed on, and what is
// answered passed back, each later by half of a round trip. It ends with ctx.
func startRelay(ctx context.Context, to string, trip time.Duration) (address string) {
	l := try.Get(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() { // ends with l
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
			go delay(far, near, trip/2)
			go delay(near, far, trip/2)
		}
	}()
	return l.Addr().String()
}

// delay passes on what comes, and then the end, each so much later, until either side closes.
func delay(to, from net.Conn, by time.Duration) {
	type piece struct {
		b   []byte
		due time.Time
	}
	// Room for 64 MB of full TLS records, 2.6 GB/s at 25 ms: the way is long, not narrow.
	way := make(chan piece, 4096)
	go func() { // ends with way
		defer to.Close()
		for p := range way {
			<-time.After(time.Until(p.due))
			if _, err := to.Write(p.b); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(way)
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		way <- piece{bytes.Clone(b[:n]), time.Now().Add(by)}
	}
}
