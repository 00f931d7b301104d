package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// Request is a request to send.
type Request struct {
	Path  string // the request target, with its query
	Token string // the bearer token, or empty without one
	Watch bool   // says that the answer never ends: its DATA frames count as done
}

// Config describes a load. Address and TLS are required.
type Config struct {
	Address     string      // the server's host:port
	TLS         *tls.Config // the client's configuration; ALPN is added
	Connections int         // the number of connections, by default one
	Streams     int         // the number of concurrent requests on each, by default one
	// Rate is how many requests start per second, on all connections together, at random moments, without waiting for
	// earlier ones; Streams then only limits them. If zero, the next request starts when one has ended.
	Rate float64
	// Next returns the n-th request of a connection, counted from zero. If nil, requests are those of Open.
	Next func(conn, n int) Request
	Size int // the required length of every body, or zero for any
	// Visit, if not nil, is called in a loop by Connections goroutines, instead of requests over
	// HTTP/2; it makes its own connections.
	Visit func(context.Context) error
}

// Load is a running load.
type Load struct {
	cfg    Config
	conns  []*conn
	wg     sync.WaitGroup // two goroutines per connection at most
	ctx    context.Context
	cancel context.CancelFunc

	faults atomic.Int64
	// mu guards first.
	mu    sync.Mutex
	first error // the first fault
}

// dialing is the timeout for a connection with its TLS handshake: a thousand at once on two busy
// processors take seconds.
const dialing = 30 * time.Second

// Start connects, and starts the requests. It returns when all connections are made.
func Start(ctx context.Context, cfg Config) (*Load, error) {
	cfg.Connections, cfg.Streams = max(cfg.Connections, 1), max(cfg.Streams, 1)
	l := &Load{cfg: cfg}
	l.ctx, l.cancel = context.WithCancel(ctx)
	tc := cfg.TLS.Clone()
	tc.NextProtos = []string{http2.NextProtoTLS}
	for i := range cfg.Connections {
		c, err := l.connect(i, tc)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.conns = append(l.conns, c)
	}
	for _, c := range l.conns {
		switch { // all end with the connection or ctx, which Close ends
		case cfg.Visit != nil:
			l.wg.Go(c.visit)
			continue
		case cfg.Rate > 0:
			l.wg.Go(func() { c.pace(cfg.Rate / float64(cfg.Connections)) })
		case cfg.Next != nil:
			c.send(func() {
				for range cfg.Streams {
					c.next(time.Now())
				}
			})
		}
		l.wg.Go(c.read)
	}
	return l, nil
}

// Open sends n more requests on every connection.
func (l *Load) Open(n int, r Request) {
	for _, c := range l.conns {
		c.send(func() {
			for range n {
				c.ask(r, time.Now())
			}
		})
	}
}

func (l *Load) connect(i int, tc *tls.Config) (*conn, error) {
	if l.cfg.Visit != nil {
		return &conn{l: l}, nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, dialing)
	defer cancel()
	raw, err := (&tls.Dialer{NetDialer: &net.Dialer{}, Config: tc}).DialContext(ctx, "tcp", l.cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	t := raw.(*tls.Conn) //nolint:forcetypeassert // a tls.Dialer makes no other
	if p := t.ConnectionState().NegotiatedProtocol; p != http2.NextProtoTLS {
		_ = t.Close()
		return nil, fmt.Errorf("connecting: the server chose %q, not HTTP/2", p)
	}
	return newConn(l, i, t)
}

// Close ends all requests and connections, and returns the first fault.
func (l *Load) Close() error {
	l.cancel()
	for _, c := range l.conns {
		if c.tls != nil {
			_ = c.tls.NetConn().Close() // TLS's close_notify would wait for a writer
		}
	}
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func (l *Load) fault(err error) {
	if l.ctx.Err() != nil {
		return // caused by Close: not a fault
	}
	l.faults.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = err
	}
}

// Snapshot is the counts since Start.
type Snapshot struct {
	At     time.Time       // its time
	Done   int64           // the number of correct answers and of DATA frames of watches
	Faults int64           // the number of wrong answers and lost connections
	Took   []time.Duration // the latencies since the last Snapshot, sorted
}

// Snapshot returns the counts.
func (l *Load) Snapshot() Snapshot {
	s := Snapshot{At: time.Now(), Faults: l.faults.Load(), Done: l.done()}
	for _, c := range l.conns {
		c.mu.Lock()
		s.Took = append(s.Took, c.took...)
		c.took = nil
		c.mu.Unlock()
	}
	slices.Sort(s.Took)
	return s
}

func (l *Load) done() (n int64) {
	for _, c := range l.conns {
		n += c.done.Load()
	}
	return n
}

// WaitDone waits for n answers since Start.
func (l *Load) WaitDone(ctx context.Context, n int64) error {
	tick := time.NewTicker(5 * time.Millisecond) // a poll costs microseconds
	defer tick.Stop()
	for {
		done, faults := l.done(), l.faults.Load()
		switch {
		case done >= n:
			return nil
		case faults > 0:
			return errors.Join(fmt.Errorf("waiting for %d answers: there were %d faults", n, faults), l.Close())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d answers, received %d: %w", n, done, ctx.Err())
		case <-tick.C:
		}
	}
}
