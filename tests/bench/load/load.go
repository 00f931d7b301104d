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
	// Path is the request target, with its query.
	Path string
	// Token is the bearer token, or empty without one.
	Token string
}

// Config describes a load. Address, TLS and Next are required.
type Config struct {
	// Address is the server's host:port.
	Address string
	// TLS is the client's configuration; ALPN is added.
	TLS *tls.Config
	// Connections is the number of connections, by default one.
	Connections int
	// Streams is the number of concurrent requests on each, by default one.
	Streams int
	// Rate is how many requests start per second, on all connections together, at random moments,
	// without waiting for earlier ones; Streams then only limits them. If zero, the next request
	// starts when one has ended.
	Rate float64
	// Next returns the n-th request of a connection, counted from zero.
	Next func(conn, n int) Request
	// Size is the required length of every body, or zero for any.
	Size int
	// First is sent once on every connection before Start returns; the other requests then wait for
	// Go. If nil, they start at once.
	First *Request
	// Visit, if not nil, is called in a loop by Connections goroutines, instead of requests over
	// HTTP/2; it makes its own connections.
	Visit func(context.Context) error
	// Watch leaves requests open: answers never end, and their DATA frames count as done.
	Watch bool
}

// Load is a running load.
type Load struct {
	cfg    Config
	conns  []*conn
	wg     sync.WaitGroup // two goroutines per connection at most
	ctx    context.Context
	cancel context.CancelFunc
	begin  chan struct{} // closed by Go, or by Start
	once   sync.Once     // closes begin
	warm   sync.WaitGroup

	timed  atomic.Bool // latencies are recorded
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
	l := &Load{cfg: cfg, begin: make(chan struct{})}
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
	if cfg.First == nil {
		l.Go()
	} else {
		l.warm.Add(len(l.conns))
	}
	for _, c := range l.conns {
		l.wg.Go(c.run) // ends with the connection, which Close ends
		if cfg.Rate > 0 {
			l.wg.Go(func() { c.pace(cfg.Rate / float64(cfg.Connections)) }) // ends with ctx
		}
	}
	l.warm.Wait()
	return l, nil
}

// Go starts the requests that wait after Config.First.
func (l *Load) Go() { l.once.Do(func() { close(l.begin) }) }

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
	// At is its time.
	At time.Time
	// Done is the number of correct answers, or with Config.Watch of DATA frames.
	Done int64
	// Faults is the number of wrong answers and lost connections.
	Faults int64
}

// Snapshot returns the counts.
func (l *Load) Snapshot() Snapshot {
	s := Snapshot{At: time.Now(), Faults: l.faults.Load()}
	for _, c := range l.conns {
		s.Done += c.done.Load()
	}
	return s
}

// Time starts to record latencies, or stops and returns them, sorted.
func (l *Load) Time(on bool) []time.Duration {
	l.timed.Store(on)
	if on {
		return nil
	}
	var all []time.Duration
	for _, c := range l.conns {
		c.mu.Lock()
		all = append(all, c.took...)
		c.took = nil
		c.mu.Unlock()
	}
	slices.Sort(all)
	return all
}

// WaitDone waits for n answers since Start.
func (l *Load) WaitDone(ctx context.Context, n int64) error {
	tick := time.NewTicker(5 * time.Millisecond) // a poll costs microseconds
	defer tick.Stop()
	for {
		s := l.Snapshot()
		switch {
		case s.Done >= n:
			return nil
		case s.Faults > 0:
			return errors.Join(fmt.Errorf("waiting for %d answers: there were %d faults", n, s.Faults), l.Close())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d answers, received %d: %w", n, s.Done, ctx.Err())
		case <-tick.C:
		}
	}
}
