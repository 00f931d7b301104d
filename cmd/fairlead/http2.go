package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
)

// On the net/http lane some requests never reach a handler: heads above the limit are answered with 431, malformed ones and streams above the limit are reset, and
// nothing of it ends a connection. Each is work all the same: 0.3 ms for 70 bytes of HPACK that stand for 256 KB. So such a connection pays for them, and for what its client
// gives up, from a budget like that of a client's connection on the frame lane.

// calm has net/http serve HTTP/2 on connections that pay. charge is told of each that is ended for it. sendAway asks the clients of all of them to go, as often as
// it is called.
func calm(s *http.Server, streams int, charge func(context.Context)) (sendAway func(), err error) {
	// net/http alone would take nothing but a *tls.Conn, whose plain side cannot be seen. This is the same code from the repository where it is written
	// (decision 0014).
	const usual = 250                                     // streams at a time, if nothing is said
	own := &http2.Server{}                                //nolint:staticcheck // deprecated in favour of net/http, see above
	if err := http2.ConfigureServer(s, own); err != nil { //nolint:staticcheck // as above; it sees to the TLS configuration
		return nil, fmt.Errorf("configuring HTTP/2: %w", err)
	}
	// GOAWAY is sent by the shutdown of the server that was configured last. This one has nothing to shut down, so that it can be done again and again.
	bell := &http.Server{ReadHeaderTimeout: readHeaderTimeout}
	if err := http2.ConfigureServer(bell, own); err != nil { //nolint:staticcheck // as above
		return nil, fmt.Errorf("configuring HTTP/2: %w", err)
	}
	sendAway = func() { _ = bell.Shutdown(context.Background()) } // it has no connections to be waited for
	s.RegisterOnShutdown(sendAway)
	s.TLSNextProto["h2"] = func(s *http.Server, c *tls.Conn, h http.Handler) {
		ctx := context.Background()
		if b, ok := h.(interface{ BaseContext() context.Context }); ok {
			ctx = b.BaseContext() // what net/http made of Server.BaseContext and ConnContext
		}
		paying := newPayingConn(c, cmp.Or(streams, usual))
		paying.charge = func() { charge(ctx) }
		own.ServeConn(paying, &http2.ServeConnOpts{Context: context.WithValue(ctx, payingKey{}, paying), Handler: h, BaseConfig: s}) //nolint:staticcheck // as above
	}
	return sendAway, nil
}

const (
	// maxLimbo is how many streams may have been read of which it is not known yet whether a handler gets them. net/http reads on while its answers wait to be
	// written: without this, ten times as many heads are decoded before the first 431 is seen.
	maxLimbo = 32
	// limboTime is how long that is waited for: much longer than a goroutine takes to begin. Some streams never tell: those that are reset in net/http's queue, and
	// those that come after a GOAWAY, which are decoded and ignored. Who goes on with them gets a hundred a second decoded.
	limboTime = 10 * time.Millisecond
)

// payingConn is the plain side of a connection. It sees in its frames which streams begin and end, and learns from the handler which ones it had: the difference
// was refused.
type payingConn struct {
	*tls.Conn

	most    int           // streams at a time
	charge  func()        // called once, when over
	settled chan struct{} // holds an element when limbo has become less

	mu      sync.Mutex // guards what follows
	in, out frames
	last    uint32 // the last stream that the client has opened
	limbo   int    // streams that were read and neither came to a handler nor ended; maxLimbo when a wait was given up
	served  int    // streams that a handler has or had, and whose end was not written yet
	budget  budget.Budget
	began   time.Time // the budget's clock
	over    bool      // no more is to be read
}

func newPayingConn(c *tls.Conn, streams int) *payingConn {
	return &payingConn{Conn: c, most: streams, settled: make(chan struct{}, 1), in: frames{skip: len(http2.ClientPreface)}, budget: budget.New(0), began: time.Now()}
}

type payingKey struct{}

// pay has the request's connection know that a handler has it. The caller calls the result when it has not any more.
func pay(r *http.Request) (leave func()) {
	c, _ := r.Context().Value(payingKey{}).(*payingConn)
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = min(c.served+1, c.most) // bounded, should an end ever be missed
	c.settle()
	return func() { c.left(r.Context().Err() != nil) }
}

// left is told that a handler has ended. If the stream was reset meanwhile, it was by the client or for its fault, and no end is written.
func (c *payingConn) left(reset bool) {
	if !reset {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = max(c.served-1, 0)
	c.spend(budget.Reset)
}

// settle is called with the mutex held.
func (c *payingConn) settle() {
	c.limbo--
	select {
	case c.settled <- struct{}{}:
	default:
	}
}

// Write looks at what net/http writes.
func (c *payingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.out.follow(p, c.wrote)
	c.mu.Unlock()
	return c.Conn.Write(p) //nolint:wrapcheck // this is the connection
}

// wrote sees a frame, with the mutex held.
func (c *payingConn) wrote(f *frames) {
	reset, cost := f.kind() == http2.FrameRSTStream, budget.Refused
	switch {
	case reset && f.code() == http2.ErrCodeNo:
		return // it follows an end: the rest of the body is not wanted (RFC 9113 §8.1)
	case reset && f.code() == http2.ErrCodeRefusedStream:
		cost = budget.Reset // a client that does not know the limit yet
	case !reset && (!f.begins() || !f.flags().Has(http2.FlagDataEndStream)):
		return // the flag is that of HEADERS too
	}
	if c.served == 0 {
		c.settle()
		c.spend(cost)
		return
	}
	c.served--
	if !reset {
		c.budget.Completed()
	}
}

// spend takes from the budget, with the mutex held.
func (c *payingConn) spend(n int) {
	if c.budget.Spend(n, time.Since(c.began)) || c.over {
		return
	}
	c.over = true
	c.charge()
}

// Read ends the connection once the budget is used up: net/http makes a GOAWAY of this error. What it has read before, it has dealt with when it reads again.
func (c *payingConn) Read(p []byte) (int, error) {
	if c.await() {
		return 0, http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.follow(p[:n], c.read)
	return n, err //nolint:wrapcheck // this is the connection
}

// read sees a frame, with the mutex held. Trailers open nothing.
func (c *payingConn) read(f *frames) {
	if f.kind() == http2.FrameHeaders && f.stream() > c.last {
		c.last = f.stream()
		c.limbo++
	}
}

// await waits while too many streams are in limbo, and reports whether the budget is used up.
func (c *payingConn) await() (over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.limbo <= maxLimbo {
		return c.over
	}
	late := time.NewTimer(limboTime)
	defer late.Stop()
	for !c.over && c.limbo > maxLimbo {
		c.mu.Unlock()
		select {
		case <-c.settled:
			c.mu.Lock()
		case <-late.C:
			c.mu.Lock()
			c.limbo = maxLimbo // each further one waits as long
		}
	}
	return c.over
}
