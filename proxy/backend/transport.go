package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

const (
	maxRetries = 2 // the number of retries: a third failure in a row is not one endpoint's accident
	// impatience is how long a request waits for a connection if there is another endpoint. The dial goes on.
	impatience = 500 * time.Millisecond
	// queueTimeout is how long it waits if there is none: for a queue that moves. A failed dial ends all waits earlier.
	queueTimeout = 10 * time.Second
)

// RoundTrip sends req to an endpoint over HTTP/1.1 and returns its response. It follows no redirects, does not
// decompress and adds no header fields. Of req's URL it uses path and query only; an empty Host becomes the endpoint's
// address. The response's Request is what was sent: its URL's Host is the endpoint. by is the client connection's; nil
// spreads requests. A request is retried on another endpoint if it got no connection. A GET or HEAD that is not
// long-running is also retried if its connection was lost, or its endpoint became unhealthy, before the response head.
// There are at most two retries, one after a lost connection, within req's context and the retry budget; with a body
// only if none of it was read. net/http itself sends a GET or HEAD again, outside the budget, once for each lost
// connection that was idle before. The caller must close the response's body, and req's when nothing reads it any more.
func (u *Upstream) RoundTrip(req *http.Request, longRunning bool, by *Stay) (*http.Response, error) {
	u.budget.Deposit()
	c := &call{u: u, by: by, req: req, long: longRunning}
	if req.Body != nil && req.Body != http.NoBody {
		c.body = &body{Reader: req.Body}
	}
	c.safe = !longRunning && (req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == "")
	if f := c.run(req.Context(), c.try); f != nil {
		return nil, f
	}
	return c.res, nil
}

type call struct {
	u    *Upstream
	by   *Stay // may be nil
	req  *http.Request
	long bool
	safe bool           // executing it twice is harmless
	body *body          // nil means none
	res  *http.Response // when a try has succeeded

	tried   []*endpoint // released, only to be avoided
	retries int
	lost    int       // tries that lost a connection: the request may be what ends its servers
	until   time.Time // when to stop waiting for any endpoint; zero means that all tries had one
}

// run tries one endpoint after the other. If try succeeds, it keeps the endpoint.
func (c *call) run(ctx context.Context, try func(*endpoint) *engine.Failure) *engine.Failure {
	for {
		e := c.u.take(c.by, c.tried...)
		var f *engine.Failure
		if e == nil {
			f = fail(engine.ReasonDial, "", errNoEndpoint)
		} else if f = try(e); f == nil {
			return nil
		} else {
			e.release()
		}
		if !c.again(ctx, e, f) {
			if f.Reason == engine.ReasonEjected { // only says why to try again
				f.Reason = engine.ReasonLost
			}
			return f
		}
	}
}

// again reports whether to retry. It pauses first if necessary.
func (c *call) again(ctx context.Context, e *endpoint, f *engine.Failure) bool {
	unsent := f.Reason == engine.ReasonDial
	may := unsent || c.safe && (f.Reason == engine.ReasonLost || f.Reason == engine.ReasonEjected)
	if !may || c.lost > 1 || ctx.Err() != nil || c.body != nil && c.body.begun.Load() {
		return false
	}
	if e != nil {
		c.tried = append(c.tried, e)
	}
	if errors.Is(f.Err, errPatience) && c.by != nil && !c.by.stuck {
		c.by = nil // only this request goes elsewhere: its client stays
	}
	another := c.u.view.Load().other(c.tried) != nil
	if c.until.IsZero() {
		c.until = time.Now().Add(c.u.target.wait())
	}
	switch {
	case unsent && another && c.retries < maxRetries:
		// A retry elsewhere costs the backend nothing, so it is not charged to the budget.
	case unsent && time.Now().Before(c.until):
		c.tried = c.tried[:0]
		return latest.Sleep(ctx, dialPause)
	case unsent, !another, c.retries >= maxRetries, !c.u.budget.Allow():
		return false
	}
	c.retries++
	c.u.meter.retry(f.Reason)
	return true
}

// elsewhere reports whether another endpoint may be tried after e.
func (c *call) elsewhere(e *endpoint) bool {
	return c.retries < maxRetries && c.u.view.Load().other(append(slices.Clip(c.tried), e)) != nil
}

// patience returns how long to wait for a connection.
func (c *call) patience(e *endpoint) time.Duration {
	if c.elsewhere(e) {
		return impatience + min(time.Duration(c.u.took.Load()), impatience) // it may be far away
	}
	return queueTimeout
}

func (c *call) try(e *endpoint) *engine.Failure {
	p := e.http1()
	if p == nil {
		return fail(engine.ReasonDial, e.address, errGone)
	}
	ctx, cancel := context.WithCancelCause(c.req.Context())
	var on atomic.Pointer[Conn]
	start, sent := time.Now(), atomic.Int64{} // the time until the whole request was sent
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if got, ok := i.Conn.(*pooled); ok {
			on.Store(got.Conn)
			got.use(c)
		}
	}, PutIdleConn: func(error) { on.Load().busy.CompareAndSwap(c, nil) }, // unless the next request has it already
		WroteRequest: func(httptrace.WroteRequestInfo) { sent.Store(int64(time.Since(start))) }})
	e.mu.Lock()
	verdict, out := e.verdict, e.out.Load() // it ends under the mutex, after out was set, so no ejection is missed
	e.mu.Unlock()
	if out && c.elsewhere(e) { // ejected since it was chosen
		cancel(nil)
		return fail(engine.ReasonDial, e.address, errEjected)
	}
	stays := context.AfterFunc(verdict, func() {
		if c.safe || on.Load() == nil { // not sent yet, or safe to send again
			cancel(errEjected)
		}
	})
	patience := time.AfterFunc(c.patience(e), func() {
		if on.Load() == nil {
			cancel(errPatience)
		}
	})
	res, err := p.transport.RoundTrip(c.outgoing(ctx, e))
	if !stays() && c.safe {
		cancel(errEjected) // as its function does, perhaps later: the response must not be cut then
	}
	patience.Stop()
	if err == nil && res.StatusCode < http.StatusOK {
		_ = res.Body.Close() // of 101, the body is the connection
		err = errNotFinal
	}
	if err == nil && ctx.Err() != nil {
		// net/http prefers a response to the end of the context. A server may respond to the end of
		// its connection, for example with 200 from a handler that has given up.
		_ = res.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if c.req.Context().Err() != nil {
			<-ctx.Done() // in a moment: a request's limit ends its body, too, which must not pass for the cause
		}
		reason := classify(ctx, err, on.Load() != nil)
		cancel(nil)
		if on.Load() != nil && reason != engine.ReasonEjected { // of a dial: it was for net/http's own retry
			c.lost++
		}
		if reason == engine.ReasonDeadline || reason == engine.ReasonDrain {
			err = c.req.Context().Err() // net/http may wrap it, or return its cause
		}
		return fail(reason, e.address, err)
	}
	got := on.Load() // never nil: there is a response
	got.last.Store(res.Close || !c.long)
	answer := &responseBody{ReadCloser: res.Body, request: c.req.Context(), verdict: verdict}
	switch whole := sent.Load(); {
	case c.long:
		answer.on = got                                                // the verdict is its only sign of life
		stays = context.AfterFunc(verdict, func() { _ = got.Close() }) // an error means that it has ended
	case whole > 0: // else it came before the end of the request
		c.u.Observe(e.address, time.Since(start)-time.Duration(whole))
	}
	answer.done = func() {
		stays()
		cancel(nil)
		got.last.Store(false)
		e.release()
	}
	res.Body, c.res = answer, res
	return nil
}

// outgoing returns the request to send. It shares the caller's Header unless a field must be
// changed; an empty User-Agent keeps net/http from setting its own.
func (c *call) outgoing(ctx context.Context, e *endpoint) *http.Request {
	out := c.req.WithContext(ctx)
	target := *c.req.URL
	target.Scheme, target.Host, target.User = "https", e.address, (*url.Userinfo)(nil)
	out.URL = &target
	if out.Host == "" {
		out.Host = e.host()
	}
	out.Body, out.GetBody = http.NoBody, nil
	if c.body != nil {
		out.Body = c.body
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header = out.Header.Clone()
		out.Header["User-Agent"] = []string{""}
	}
	// These make net/http resend a write when a connection is lost (http.Transport): a client's field must not decide
	// that. net/http checks the canonical spelling only; to the backend, spelling makes no difference.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := out.Header[name]; ok && !c.safe {
			out.Header = out.Header.Clone()
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = values
		}
	}
	return out
}

// responseBody releases everything when the response has been read or closed.
type responseBody struct {
	io.ReadCloser
	request, verdict context.Context
	on               *Conn // of a long-running response, else nil
	done             func()
	once             sync.Once // for done
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
		return n, nil
	case b.on != nil && (b.on.isCut.Load() || b.verdict.Err() != nil):
		// Its connection is no longer trusted, its endpoint ejected or hung: the client goes on elsewhere, or waits.
		err = net.ErrClosed
	case err == io.EOF && b.request.Err() != nil: //nolint:errorlint // readers do not wrap it
		err = context.Cause(b.request) // the server may have ended its body for the end of its connection
	case b.request.Err() == nil && !isConnectionError(err): // such as chunks without a length
		err = fail(engine.ReasonBadResponse, "", err)
	}
	b.once.Do(b.done)
	return n, err //nolint:wrapcheck // io.EOF must stay unwrapped
}

func (b *responseBody) Close() error {
	defer b.once.Do(b.done)
	return b.ReadCloser.Close() //nolint:wrapcheck // the error of another body
}

// classify returns how a round trip failed. sent says that it had a connection, so the request may have been sent.
func classify(ctx context.Context, err error, sent bool) engine.Reason {
	switch cause := context.Cause(ctx); {
	case (cause == errEjected || cause == errPatience) && !sent: //nolint:errorlint // they are ours
		return engine.ReasonDial
	case cause == errEjected || cause == errPatience: //nolint:errorlint // they are ours
		return engine.ReasonEjected
	case cause != nil:
		return over(ctx)
	case errors.Is(err, ErrBody):
		return engine.ReasonClientReset
	case errors.As(err, new(*dialError)), errors.Is(err, errGone):
		return engine.ReasonDial
	case isConnectionError(err):
		return engine.ReasonLost
	}
	return engine.ReasonBadResponse
}

const (
	maxHeld    = 256 << 10 // the longest request body that is held
	minCharged = 4 << 10   // the least that a body is charged
	waiting    = 16 << 10  // what the request takes that waits for one: a goroutine, and copies of its head
	// maxHeldTotal limits all together: 256 of the longest. Beyond, or if too much memory is held, bodies are streamed.
	maxHeldTotal = 64 << 20
)

// Hold reads a short body of known length into memory and replaces r.Body, before a place is taken for a stranger's
// request: neither the local apiserver nor a place waits for a slow client. It returns when the body was read or
// failed; a deadline must be set on the connection. A body that is long, of unknown length, or beyond the share of from
// is left to be streamed. The caller must call end when the request has ended.
func (u *Upstream) Hold(r *http.Request, from bound.Source) (end func(), err error) {
	n, memory := r.ContentLength, u.shared.memory
	if r.Body == nil || r.Body == http.NoBody || n <= 0 || n > maxHeld {
		return func() {}, nil
	}
	place, ok := u.shared.buffered.Take(from, max(n, minCharged), maxHeldTotal)
	if !ok || !memory.Hold(n+waiting, hold.Body) {
		place.Leave()
		return func() {}, nil
	}
	end = sync.OnceFunc(func() {
		place.Leave()
		memory.Add(-n - waiting)
	})
	held := make([]byte, n)
	if _, err := io.ReadFull(r.Body, held); err != nil {
		end()
		return nil, fail(engine.ReasonClientReset, "", fmt.Errorf("reading request body of %d bytes: %w", n, err))
	}
	r.Body = heldBody{bytes.NewReader(held)}
	return end, nil
}

type heldBody struct{ *bytes.Reader }

// Streams reports whether a request has a body that Hold has left to be streamed.
func (*Upstream) Streams(r *http.Request) bool {
	_, held := r.Body.(heldBody)
	return r.Body != nil && r.Body != http.NoBody && !held
}

// Close does nothing: the memory belongs to Hold's caller.
func (heldBody) Close() error { return nil }

// body is a request's body, for each try until some of it was read.
type body struct {
	io.Reader
	begun atomic.Bool // reading it
}

func (b *body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	return b.Reader.Read(p) //nolint:wrapcheck // its own error, see ErrBody
}

// Close leaves it open for the next try: a failed dial must not close the client's body.
func (*body) Close() error { return nil }

// Prove requests /version from the local apiserver with a token, over the unproven pool, and
// returns the status. kube-apiserver answers it from memory, for every authenticated user.
func (l *Local) Prove(ctx context.Context, token string, from bound.Source, by *Stay) (status int, err error) {
	u := l.Upstream(PoolUnproven)
	place, ok := u.Acquire(from, false)
	if !ok {
		return 0, fmt.Errorf("asking whether a token is accepted: %w", bound.ErrFull)
	}
	defer place.Leave()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // like a review
	defer cancel()
	ask := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/version"},
		Header: http.Header{"Authorization": {"Bearer " + token}},
	}
	res, err := u.RoundTrip(ask.WithContext(ctx), false, by)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	// Read the body, so that the connection is kept. A version is never longer than this.
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, err //nolint:wrapcheck // an error of the connection, which names it
}

// fail returns the failure of one try at an address, which may be empty: the error of a request
// over HTTP/2, too. The reason says what may have been executed, and so what to answer.
func fail(r engine.Reason, address string, err error) *engine.Failure {
	if address != "" {
		err = fmt.Errorf("forwarding to %s: %w", address, err)
	}
	return &engine.Failure{Outcome: engine.Outcome{Reason: r, Err: err}}
}

// Unreachable returns the failure of a request to a backend that is gone.
func Unreachable() *engine.Failure { return fail(engine.ReasonNoEndpoint, "", errGone) }

// over returns why a request has failed whose context has ended: its time is over, or, if its
// client is still there, this process ends it.
func over(ctx context.Context) engine.Reason {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return engine.ReasonDeadline
	}
	return engine.ReasonDrain
}

// ErrBody is to be the cause of an error of a request's own body: it is the caller's fault, not the backend's.
var ErrBody = errors.New("the request's body cannot be read")

var (
	errNoEndpoint = errors.New("there is no endpoint")
	errGone       = errors.New("the endpoint is gone")
	errNotFinal   = errors.New("the backend switched protocols unasked, or sent a status below 100")
	errHugeHead   = errors.New("the head of the response is too large") // before net/http has read the rest
	errLost       = errors.New("the connection was lost")
	errIdle       = errors.New("the server has closed an idle connection")
	errPatience   = errors.New("waiting for a connection took too long")
	errEjected    = errors.New("the endpoint is unhealthy")
)

// isConnectionError distinguishes a connection that ended from a malformed response. Sockets return net.Errors.
func isConnectionError(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(net.Error)) ||
		err.Error() == "http: server closed idle connection" // net/http does not export it
}
