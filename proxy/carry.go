package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// carry forwards a request of an HTTP/1.1 client over the engine, which does what it does for
// HTTP/2: it places, repeats, limits and cleans, and says how the request has ended.
func (p *Proxy) carry(w http.ResponseWriter, r *http.Request, x *exchange, from bound.Source) {
	if err := p.enter(&x.held, &x.decision, x.upstream, from); err != nil {
		p.noPlace(w, r, x, err)
		return
	}
	x.bind()
	x.ended = &ended{}
	plan := x.plan()
	plan.Path = x.head.target()
	plan.Done = func(o h2.Outcome) {
		x.carried(&o)
		x.ended.set(o)
	}
	h := x.head
	ctx, end := relayInterims(r, w)
	res, err := p.frames.server.RoundTrip(r.WithContext(ctx), &h2.Head{Method: h.Method, Authority: h.Authority, Fields: h.Fields}, plan)
	end()
	var failure *h2.Failure
	switch {
	case err == nil:
		p.relay(w, res)
	case errors.As(err, &failure) && failure.Answer != nil:
		failure.Answer.ServeHTTP(w, r)
	case failure != nil && !errors.Is(err, errBadBody): // aborted, perhaps when the answer had begun
		p.forwardFailed(w, r, frameError(failure.Outcome))
	default:
		p.forwardFailed(w, r, err)
	}
}

// uploaded is a client's body that is read by others than its handler.
type uploaded struct {
	io.ReadCloser
	w        http.ResponseWriter
	ended    atomic.Bool // it was read to its end, or cannot be
	answered bool        // the request was
}

// lend returns the request with a body that others may close at any time: net/http's Close waits for a Read that is under way, as
// long as the client likes. Whoever calls it calls end before the handler returns.
func lend(w http.ResponseWriter, r *http.Request) (*uploaded, *http.Request) {
	b := &uploaded{ReadCloser: r.Body, w: w}
	if r.Body != http.NoBody {
		own := *r
		own.Body, r = io.NopCloser(b), &own
	}
	return b, r
}

func (b *uploaded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended.Store(true)
		if err != io.EOF { //nolint:errorlint // readers do not wrap it
			err = fmt.Errorf("%w: %w", errBadBody, err)
		}
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

// errBadBody is the client's fault.
var errBadBody = errors.New("the request's body cannot be read")

// uploadRest is how long the end of a Read is waited for that is under way when the request was answered.
const uploadRest = 5 * time.Second

// end closes the body: what still reads it must not outlive the handler (golang/go#46866), and net/http's Close waits for it. The
// client has its answer meanwhile.
func (b *uploaded) end() {
	if b.ReadCloser != http.NoBody && !b.ended.Load() {
		control := http.NewResponseController(b.w)
		if b.answered {
			_ = control.Flush()
		}
		_ = control.SetReadDeadline(time.Now().Add(uploadRest))
		defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	}
	_ = b.Close() // nobody reads any more
}

// cut ends a Read that is under way: net/http's transport does not give a request up before (persistConn.mapRoundTripError).
func (b *uploaded) cut() {
	if b.ReadCloser != http.NoBody && !b.ended.Load() {
		_ = http.NewResponseController(b.w).SetReadDeadline(time.Now())
	}
}

// learn finds out whether the backend speaks HTTP/2, within the time that the request has.
func (p *Proxy) learn(r *http.Request, x *exchange) error {
	ctx := r.Context()
	if x.head.Upgrade != "" {
		return nil // is spoken over HTTP/1.1 in any case
	}
	if limit := x.decision.Timeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return x.upstream.Learn(ctx) //nolint:wrapcheck // forwardError knows it
}

// Fetch asks an upstream for what this process itself wants to know. It counts against none of its limits.
func (p *Proxy) Fetch(u *backend.Upstream, r *http.Request, longRunning bool) (*http.Response, error) {
	if u == nil {
		return nil, backend.ErrUnreachable
	}
	if err := u.Learn(r.Context()); err != nil {
		return nil, err //nolint:wrapcheck // names the backend
	}
	if !u.HTTP2() {
		return u.RoundTrip(r, longRunning) //nolint:wrapcheck // as above
	}
	plan := u.Plan()
	plan.LongRunning, plan.Again = longRunning, !longRunning && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	plan.Done = func(o h2.Outcome) {
		if o.Answer > 0 && !longRunning {
			u.Observe(o.Endpoint.Name, o.Answer)
		}
	}
	return p.frames.server.RoundTrip(r, nil, plan) //nolint:wrapcheck // as above
}

// target is the client's, byte for byte.
func (h *Head) target() string {
	if !h.HasQuery {
		return h.Path
	}
	return h.Path + "?" + h.RawQuery
}

// ended is how the engine has ended a request. It may end before its client has all of the answer,
// and after.
type ended struct {
	mu sync.Mutex // guards o
	o  h2.Outcome
}

func (e *ended) set(o h2.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.o = o
}

func (e *ended) get() (o h2.Outcome) {
	if e == nil {
		return o
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.o
}

// relay passes a backend's answer on to a client of net/http. What cannot be passed on as a whole
// breaks the client's connection, or stream: it must not look whole.
func (p *Proxy) relay(w http.ResponseWriter, res *http.Response) {
	defer res.Body.Close()
	h := w.Header()
	for key, values := range res.Header {
		h[key] = append(h[key], values...)
	}
	announced := make(map[string]bool, len(res.Trailer))
	for key := range res.Trailer {
		announced[key] = true
		h.Add("Trailer", key)
	}
	w.WriteHeader(res.StatusCode)
	if err := p.relayBody(w, res); err != nil {
		p.log.Debug("relaying a response", "err", err)
		panic(http.ErrAbortHandler)
	}
	if len(res.Trailer) > 0 {
		_ = http.NewResponseController(w).Flush() // else a short body is sent with its length, and no trailers
	}
	for key, values := range res.Trailer {
		if !announced[key] {
			key = http.TrailerPrefix + key
		}
		h[key] = values
	}
}

// relayBody flushes what is of no known length whenever there is no more at hand: its client waits for
// it, as for the events of a watch.
func (p *Proxy) relayBody(w http.ResponseWriter, res *http.Response) error {
	buf := p.copies.Get()
	defer p.copies.Put(buf)
	body, _ := res.Body.(interface{ AtHand() bool })
	flush := func() error { return nil }
	if res.ContentLength < 0 {
		flush = http.NewResponseController(w).Flush
	}
	for {
		if body == nil || !body.AtHand() {
			if err := flush(); err != nil {
				return err
			}
		}
		n, err := res.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err //nolint:wrapcheck // the client's
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err //nolint:wrapcheck // the backend's
		}
	}
}
