// Package relay connects two processes of a test, as a load balancer does: it accepts connections
// until the test ends, and joins two of them.
package relay

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Relay stands between a client and a server, and forwards what it receives later.
type Relay struct {
	Address string // host:port

	late  atomic.Int64 // nanoseconds
	mu    sync.Mutex   // guards what follows
	cut   bool
	conns []net.Conn
}

// Start listens on loopback and connects clients to an address until ctx ends.
func Start(ctx context.Context, to string) (*Relay, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	r := &Relay{Address: l.Addr().String()}
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
			r.mu.Lock()
			if r.conns = append(r.conns, near, far); r.cut {
				_, _ = near.Close(), far.Close()
			}
			r.mu.Unlock()
			go r.carry(far, near)
			go r.carry(near, far)
		}
	}()
	return r, nil
}

// Delay sets the delay, each way, of everything that is received from now on.
func (r *Relay) Delay(by time.Duration) { r.late.Store(int64(by)) }

// Cut ends all connections, and new ones until Cut(false).
func (r *Relay) Cut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut = cut; cut {
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.conns = nil
	}
}

// carry forwards what it receives, and then the end, each with the delay, until either side closes.
func (r *Relay) carry(to, from net.Conn) {
	type piece struct {
		b   []byte
		due time.Time
	}
	// Room for 64 MB of full TLS records, 2.6 GB/s at 25 ms: delay must not limit throughput.
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
		way <- piece{bytes.Clone(b[:n]), time.Now().Add(time.Duration(r.late.Load()))}
	}
}
