package front

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// bodyRest limits the wait for the rest of a body after the response: net/http reads 256 KiB of it, without a limit.
const bodyRest = 5 * time.Second

// limitSlowClients sets a time limit that net/http lacks, for HTTP/1.1 clients that are slow to send the rest of a
// body; for slow readers the handler does. It also closes the connection after a chunked body and after HTTP/1.0:
// net/http drops a Content-Length of the one and chunks of the other, and what follows may be smuggled (RFC 9112 §6.1).
func limitSlowClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 || r.ProtoMinor == 0 {
			w.Header().Set("Connection", "close")
		}
		b := &boundedWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		_ = b.control.SetWriteDeadline(time.Time{}) // set by the previous request
		if r.Body != http.NoBody {
			// A backend may answer while it still reads the body. Without full duplex, net/http would then consume the
			// rest of the body (golang/go#15527), which the backend would not get. An error: it is not needed.
			_ = b.control.EnableFullDuplex()
			b.body = &trackedBody{ReadCloser: r.Body}
			own := *r // net/http keeps its own request
			own.Body = b.body
			r = &own
		}
		next.ServeHTTP(b, r)
		b.end()
	})
}

type trackedBody struct {
	io.ReadCloser
	ended atomic.Bool // it was read to its end
}

func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // net/http does not wrap io.EOF
		b.ended.Store(true)
	}
	return n, err //nolint:wrapcheck // io.EOF must stay unwrapped
}

type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	body    *trackedBody // nil means no body, or that the connection is the handler's
}

// head runs before the final head, and ends the connection if a rest of the body could be read as the next request.
func (b *boundedWriter) head() {
	if b.body != nil && !b.body.ended.Load() {
		b.Header().Set("Connection", "close")
	}
}

// end runs after the handler: a client with a whole response gets some time for the rest of its body, and no reset.
func (b *boundedWriter) end() {
	b.head()
	if b.body != nil && !b.body.ended.Load() {
		_ = b.control.SetReadDeadline(time.Now().Add(bodyRest))
	}
}

func (b *boundedWriter) WriteHeader(code int) {
	if code >= http.StatusOK { // another head follows an interim one
		b.head()
	}
	b.ResponseWriter.WriteHeader(code)
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	b.head()
	return b.ResponseWriter.Write(p)
}

func (b *boundedWriter) FlushError() error {
	b.head()
	return b.control.Flush() //nolint:wrapcheck // from the wrapped writer
}

func (b *boundedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	b.body = nil
	return b.control.Hijack() //nolint:wrapcheck // from the wrapped writer
}

func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }

const (
	copies = 3 // how often a head exists until its request ends: net/http's map, the fields decided about, those sent
	// freeHead is what a head may become without asking, while half of the bound is left: thrice a long token's.
	freeHead      = 32 << 10
	leastPatience = time.Second // the least time for a head, however many wait: a megabyte at 10 Mbit/s
	patient       = 8           // how many heads may wait before the time for each is halved
	// perConn is what an idle connection costs, perRequest what more while an answer is not read: measured.
	perConn, perRequest = 32 << 10, 64 << 10
	maxQuiet            = 20 << 10 // the longest record and some key updates: clients send no other message of TLS
	// parsed is how many times its size a certificate may become, by short names. Usual ones stay below freeCerts.
	parsed, freeCerts = 16, 64 << 10
	lookEvery         = 100 * time.Millisecond // between looks for room, or of a slow head for others
	roomIdle, atOnce  = 5 * time.Second, 64    // who makes room for places, as in proxy/h2/engine
)

// errCut is the cause of the end of requests that were under way at the end of a drain's time.
var errCut = &engine.Failure{Outcome: engine.Outcome{Reason: engine.ReasonDrain}}

// heads is what the heads of HTTP/1.1 connections have in common.
type heads struct {
	memory  *hold.Bound
	waiting atomic.Int64    // heads that wait for room
	conns   bound.Places    // bytes, of a memory bound of their own
	open    context.Context // ends with cut, when the port closes all connections
	cut     context.CancelCauseFunc

	mu  sync.Mutex // guards all
	all map[*plain]struct{}
}

// take takes n bytes for a connection. Idle ones make room, as servers may let them (RFC 9112 §9.5): those of its
// address, which may be a load balancer, and only if all is taken and that has not had its share, others.
func (h *heads) take(by *plain, n int64) (place bound.Place, ok bool) {
	for limit := h.memory.Limit(); ; h.memory.Refuse(hold.Connection) {
		if place, ok = h.conns.Take(by.from, n, limit); ok || !h.makeRoom(by.source, 1, leastPatience) &&
			(!h.conns.Shares(by.from, n, limit) || !h.makeRoom(nil, 1, leastPatience)) {
			return place, ok
		}
	}
}

// makeRoom closes up to n connections of an address or, of nil, any, that were idle for so long. Of several the longest
// idle go first; finding one is fast, as each connection asks while memory is short. It reports false if there is none.
func (h *heads) makeRoom(of *hold.Source, n int, long time.Duration) bool {
	idle := map[*plain]time.Duration{}
	h.mu.Lock()
	for c := range h.all {
		if since := c.idle(); since >= long && (of == nil || c.source == of) {
			if idle[c] = since; n == 1 {
				break
			}
		}
	}
	h.mu.Unlock()
	longest := slices.SortedFunc(maps.Keys(idle), func(a, b *plain) int { return cmp.Compare(idle[b], idle[a]) })
	for _, c := range longest[:min(len(longest), n)] {
		c.leave()
		go func() { _ = c.Conn.Close() }() // takes up to 5 s if the client reads nothing
	}
	return len(idle) > 0
}

// plain is the plaintext of an HTTP/1.1 connection. net/http gets no byte of a head before there is room for it.
type plain struct {
	*tls.Conn // embedded, for net/http sets Request.TLS by its ConnectionState, and pump calls its CloseWrite
	all       *heads
	source    *hold.Source
	kept      int64 // what the handshake leaves until the end: its buffer, and certificates
	from      bound.Source
	place     bound.Place
	gone      context.CancelCauseFunc // ends the connection's context; nil before net/http has it

	head  wire.TextHead // for the goroutine of the connection only
	ended atomic.Bool   // the head is complete, the rest is not counted. net/http may still read while it closes

	mu       sync.Mutex // guards what follows
	begun    time.Time  // when it became idle, or its head began; zero during a request. Written as head is
	deadline time.Time  // net/http's for reading
	held     int64
	closed   bool
}

// handshake counts what it reads twice: crypto/tls collects up to 256 KiB in a buffer that doubles, and stays.
func (c *plain) handshake(ctx context.Context, raw net.Conn, l *Listener) error {
	read := 0
	if p, ok := raw.(*placed); ok {
		if !l.seat(ctx, p, c) {
			return net.ErrClosed
		}
		p.counts = func(n int) bool {
			read += n
			if ok = c.hold(c.held + 2*int64(n)); !ok {
				c.all.memory.Refuse(hold.Connection)
			}
			return ok
		}
		defer func() { p.counts = nil }()
	}
	err := c.HandshakeContext(ctx)
	c.kept = 2 * int64(read)
	for _, cert := range c.ConnectionState().PeerCertificates {
		c.kept += parsed * int64(len(cert.Raw))
	}
	switch c.kept = max(0, c.kept-freeCerts); {
	case err != nil && read == 0 && ctx.Err() == nil:
		err = errUnused
	case !c.hold(0) && err == nil:
		c.all.memory.Refuse(hold.Connection)
		err = net.ErrClosed
	}
	return err //nolint:wrapcheck // from the wrapped connection
}

// SetReadDeadline keeps the deadline, because Read waits for room, too.
func (c *plain) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetReadDeadline(t) //nolint:wrapcheck // from the wrapped connection
}

func (c *plain) Close() error {
	c.leave()
	return c.Conn.Close() //nolint:wrapcheck // from the wrapped connection
}

func (c *plain) leave() {
	c.mu.Lock()
	if !c.closed {
		c.source.Give(c.held)
		c.source.Leave()
		c.place.Leave()
	}
	c.held, c.closed = 0, true
	if c.gone != nil {
		c.gone(context.Cause(c.all.open))
	}
	c.mu.Unlock()
	c.all.mu.Lock()
	delete(c.all.all, c)
	c.all.mu.Unlock()
}

// idle returns for how long no whole head has come, nor much of one, see late. Zero: the connection makes no room.
func (c *plain) idle() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.held-c.kept > freeHead || c.begun.IsZero() {
		return 0
	}
	return time.Since(c.begun)
}

func (c *plain) begin(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = at
}

// hold changes what the connection holds to n bytes beside what is kept. It reports false if there is no room.
func (c *plain) hold(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n += c.kept
	if more := n - c.held; !c.closed && (more < 0 || n <= min(freeHead, c.all.memory.Short())) {
		c.source.Give(-more)
	} else if c.closed || !c.source.Take(more, c.held) {
		return false
	}
	c.held = n
	return true
}

// changed is http.Server.ConnState: it says when a head begins, and when it was read.
func changed(c net.Conn, state http.ConnState) {
	p, begun := c.(*plain), time.Time{} //nolint:forcetypeassert // Port's listener returns nothing else
	head := state == http.StateNew || state == http.StateIdle
	if p.ended.Store(!head); head {
		p.hold(0)
		p.head, begun = wire.TextHead{}, time.Now()
	}
	p.begin(begun)
}

// Read reads a part of a head, and waits until there is room for what it becomes.
func (c *plain) Read(p []byte) (int, error) {
	h2.Quiet(c.Conn, maxQuiet)
	if c.ended.Load() {
		return c.Conn.Read(p) //nolint:wrapcheck // from the wrapped connection
	}
	n, err := c.readHead(p)
	if n == 0 {
		return n, err
	}
	if c.head.Bytes == 0 {
		c.begin(time.Now())
	}
	_, ended := c.head.Read(p[:n])
	c.ended.Store(ended)
	if c.head.Over() {
		return 0, c.refuse(http.StatusRequestHeaderFieldsTooLarge)
	}
	if c.hold(c.head.Weight()) {
		return n, err
	}
	c.all.waiting.Add(1)
	defer c.all.waiting.Add(-1)
	for ; !c.hold(c.head.Weight()); <-time.After(lookEvery) {
		if c.late() {
			c.all.memory.Refuse(hold.Head)
			return 0, c.refuse(http.StatusTooManyRequests)
		}
	}
	return n, err
}

// readHead reads from the connection. While it holds much, it looks from time to time whether others wait for that.
func (c *plain) readHead(p []byte) (int, error) {
	for c.head.Weight() > freeHead {
		c.mu.Lock()
		next := time.Now().Add(lookEvery)
		if !c.deadline.IsZero() && c.deadline.Before(next) {
			next = c.deadline
		}
		_ = c.Conn.SetReadDeadline(next)
		c.mu.Unlock()
		n, err := c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err //nolint:wrapcheck // from the wrapped connection
		}
		if c.late() {
			c.all.memory.Refuse(hold.Head)
			return 0, c.refuse(http.StatusRequestTimeout)
		}
	}
	return c.Conn.Read(p) //nolint:wrapcheck // from the wrapped connection
}

// late reports whether the time for the head is over: it is shorter while others wait, and over if too much is held.
func (c *plain) late() bool {
	now := time.Now()
	c.mu.Lock()
	over := c.closed || !c.deadline.IsZero() && !now.Before(c.deadline)
	c.mu.Unlock()
	patience := max(leastPatience, readHeaderTimeout*patient/time.Duration(patient+c.all.waiting.Load()))
	return over || c.all.memory.Over() > 0 || now.Sub(c.begun) > patience
}

// refuse answers an unfinished head. net/http closes the connection after the returned error, in silence.
func (c *plain) refuse(status int) error {
	_ = c.SetWriteDeadline(time.Now().Add(leastPatience))
	_, _ = io.WriteString(c.Conn, "HTTP/1.1 "+strconv.Itoa(status)+" "+http.StatusText(status)+
		"\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	return os.ErrDeadlineExceeded
}

type plainKey struct{}

// countWhole counts what a whole head becomes until its request ends: the connection is idle (see changed) or closed.
func countWhole(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(plainKey{}).(*plain) //nolint:forcetypeassert // set by connContext for all of handedOver
		// A part that came with the request before is in it, too.
		head := wire.TextHead{Bytes: len(r.RequestURI)}
		head.Count(r.Header)
		head.Count(r.Trailer)
		if head.Names > wire.MaxNames {
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		place, ok := c.all.take(c, perRequest)
		defer place.Leave()
		if !ok || !c.hold(copies*head.Weight()) {
			c.all.memory.Refuse(hold.Head)
			w.Header().Set("Retry-After", "1")
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if r.RequestURI == "*" && r.Method == http.MethodOptions {
			return // 200, as over HTTP/2
		}
		next.ServeHTTP(w, r)
	})
}

func (p *Port) connContext(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*plain); ok {
		c.mu.Lock()
		ctx, c.gone = context.WithCancelCause(context.WithValue(ctx, plainKey{}, c))
		if c.closed {
			c.gone(nil)
		}
		c.mu.Unlock()
	}
	return p.cfg.ConnContext(ctx, c)
}
