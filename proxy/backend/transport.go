package backend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	// maxRetries is how many more tries a request gets: a third failure in a row is not one endpoint's accident.
	maxRetries = 2
	// waitPause is the time between tries while a request waits for any endpoint to come back.
	waitPause = dialPause
	// againPause is the time before the same endpoint gets a request again that it has refused.
	againPause = 25 * time.Millisecond
)

// RoundTrip sends req to an endpoint and returns its response. It follows no redirect, decompresses nothing and adds no header field. Of req's URL the path and the
// query count; an empty Host becomes the endpoint's address. The response's Request is the one that was sent: its URL's Host tells the endpoint.
//
// What failed is tried again, on another endpoint if there is one, when the backend certainly has not executed it, or when it is a GET or HEAD, not longRunning, and no
// response head has come; at most twice more, within req's context and the retry budget. A body takes part in that if it was held (Hold). Any other request is sent once.
//
// As in net/http, the body of req is closed, also on errors, and the response's must be.
func (u *Upstream) RoundTrip(req *http.Request, longRunning bool) (*http.Response, error) {
	u.budget.deposit()
	b := bodyOf(req)
	c := &call{u: u, req: req, long: longRunning, body: b, safe: !longRunning && (req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == "")}
	res, f := c.run()
	if f != nil {
		b.end()
		return nil, f
	}
	return res, nil
}

// call is one request on its way through its tries.
type call struct {
	u    *Upstream
	req  *http.Request
	long bool
	safe bool // executing it twice does no harm
	body *body

	tried   []Lease // released ones: only to be avoided
	retries int
	until   time.Time // for so long any endpoint may come back. Zero: none has been out of reach yet
}

func (c *call) run() (*http.Response, *failure) {
	for {
		lease, ok := c.u.Pick(c.tried...)
		if !ok {
			f := &failure{kind: failDial, err: errNoEndpoint}
			if !c.again(c.req.Context(), Lease{}, f) {
				return nil, f
			}
			continue
		}
		res, f := c.try(lease)
		if f == nil {
			return res, nil
		}
		lease.Release()
		if !c.again(c.req.Context(), lease, f) {
			return nil, f
		}
	}
}

// again reports whether to try once more, after a pause if need be.
func (c *call) again(ctx context.Context, l Lease, f *failure) bool {
	if ctx.Err() != nil || !f.kind.unprocessed() && (!c.safe || f.kind != failLost && f.kind != failEjected) || !c.body.rewind() {
		return false
	}
	if l.e != nil {
		c.tried = append(c.tried, l)
	}
	another := c.u.view.Load().other(c.tried) != nil
	if c.until.IsZero() {
		c.until = time.Now().Add(c.u.target.wait)
	}
	switch {
	case (f.kind == failDial || f.kind == failBusy) && another && c.retries < maxRetries:
		// Trying elsewhere costs the backend nothing, so it does not count against the budget.
	case f.kind == failDial && time.Now().Before(c.until):
		c.tried = c.tried[:0]
		return pause(ctx, waitPause)
	case f.kind == failDial, f.kind == failBusy, c.retries >= maxRetries, !c.u.AllowRetry():
		return false
	}
	c.retries++
	c.u.meter.retry(f.kind)
	return another || pause(ctx, againPause)
}

// pause reports whether the caller still waits.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// try sends the request to one endpoint.
func (c *call) try(l Lease) (*http.Response, *failure) {
	e := l.e
	patience := queueTimeout
	if c.elsewhere(l) {
		patience = impatience
	}
	cn, err := e.get(c.req.Context(), !c.safe, patience)
	if err != nil {
		return nil, &failure{kind: getKind(c.req.Context(), err), address: e.address, err: err}
	}
	ctx, cancel := context.WithCancelCause(c.req.Context())
	var wrote atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { wrote.Store(true) },
		// To x/net/http2 a 101 is one more interim answer.
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			if code == http.StatusSwitchingProtocols {
				cancel(errSwitched)
			}
			return nil
		},
	})
	forget := func() {}
	switch {
	case c.long:
		forget = cn.watches.add(cancel)
	case c.safe:
		forget = e.waiting.add(cancel)
	}
	if e.out.Load() && c.elsewhere(l) {
		// Ejected between the choice and now, so nobody calls the request back. Nothing was sent.
		forget()
		cancel(nil)
		e.callOff(cn)
		return nil, &failure{kind: failDial, address: e.address, err: errEjected}
	}
	start := time.Now()
	res, err := cn.cc.RoundTrip(c.outgoing(ctx, e.address))
	cn.heardOf(err)
	switch {
	case err != nil:
	case res.StatusCode == http.StatusSwitchingProtocols:
		_ = res.Body.Close() // it is the connection
		err = errSwitched
	case ctx.Err() != nil:
		// net/http prefers an answer to the end of the context. A server over HTTP/1.1 that sees the end of its connection may well make one up: 200, of a
		// handler that has given up. And over HTTP/2 an answer may come right after a 101, or when the endpoint was found dead.
		_ = res.Body.Close()
		err = context.Cause(ctx)
	}
	if !c.long {
		forget()
	}
	if err != nil {
		k := classify(ctx, err, wrote.Load())
		forget()
		cancel(nil)
		e.release(cn, cn.http1)
		if k == failContext {
			err = c.req.Context().Err() // net/http may wrap it, or tell its cause
		}
		return nil, &failure{kind: k, address: e.address, err: err}
	}
	if !c.long {
		took := time.Since(start)
		c.u.meter.phase(phaseFirstByte, took)
		c.u.target.observe(e.address, took)
	}
	if c.long {
		res.Body = &watchBody{res.Body, ctx}
	}
	res.Body = &responseBody{ReadCloser: res.Body, done: func() {
		forget()
		cancel(nil)
		e.release(cn, false)
		l.Release()
		c.body.end()
	}}
	return res, nil
}

// elsewhere reports whether there is another endpoint to try after l.
func (c *call) elsewhere(l Lease) bool {
	return c.retries < maxRetries && c.u.view.Load().other(append(c.tried, l)) != nil
}

func getKind(ctx context.Context, err error) kind {
	switch {
	case ctx.Err() != nil:
		return failContext
	case err == errQueue: //nolint:errorlint // it is never wrapped
		return failBusy
	}
	return failDial
}

// outgoing is the request as it is sent. Header is shared with the caller's: RoundTrip does not change it, but for a User-Agent that net/http would invent.
func (c *call) outgoing(ctx context.Context, address string) *http.Request {
	out := c.req.WithContext(ctx)
	target := *c.req.URL
	target.Scheme, target.Host, target.User = "https", address, (*url.Userinfo)(nil)
	out.URL = &target
	out.Body = c.body.reader()
	out.GetBody = nil
	out.Close = false
	out.RequestURI = ""
	if out.Header == nil {
		out.Header = make(http.Header)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header = out.Header.Clone()
		out.Header["User-Agent"] = []string{""}
	}
	return out
}

// watchBody ends cleanly when it is ended because its connection is no longer trusted, as when the server's own timeout has passed: the client watches anew, and has no
// error to report.
type watchBody struct {
	io.ReadCloser
	ctx context.Context
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && errors.Is(context.Cause(b.ctx), errTrustEnded) {
		err = io.EOF
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

// responseBody gives everything back when the response has been read, or closed.
type responseBody struct {
	io.ReadCloser
	done func()
	over atomic.Bool
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err //nolint:wrapcheck // of another's body
}

func (b *responseBody) end() {
	if b.over.CompareAndSwap(false, true) {
		b.done()
	}
}
