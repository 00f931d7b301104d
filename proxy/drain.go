package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// EndLongRunning ends every watch and log stream cleanly: its client sees the end of the body, as when kube-apiserver's own watch timeout has passed, and
// starts a new one elsewhere. Requests that are not long-running go on. It is the step of a drain after the watches' grace.
func (p *Proxy) EndLongRunning() {
	p.end()
	p.frames.server.EndLongRunning()
}

// Leave ends every HTTP/1.1 connection with its next response, from now on: HTTP/1.1 has no way to tell a client which of its requests still count, so one that
// is on its way when an idle connection is closed is lost. It is the first step of a drain; new connections are still served.
func (p *Proxy) Leave() { p.leaving.Store(true) }

// endConn tells an HTTP/1.1 client not to use its connection again. An upgrade has its connection for itself anyhow.
func (p *Proxy) endConn(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && p.leaving.Load() && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close")
	}
}

// endable makes a long-running request one that EndLongRunning ends, between two events.
func (p *Proxy) endable(r *http.Request, e *events) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(p.ending, func() { //nolint:contextcheck // what ends is the process, not the request
		e.await(ctx)
		cancel()
	})
	return r.WithContext(ctx), func() { stop(); cancel() }
}

// events is what is known of where the events of a long-running response end.
type events struct {
	last    atomic.Int64 // when bytes came last, Unix time in nanoseconds; 0: never
	newline atomic.Bool  // the last byte ended a line
}

// await returns when what has come is whole events, as far as one can tell, as the engine does.
func (e *events) await(ctx context.Context) {
	const every = 5 * time.Millisecond // short against the time between two events
	for from := time.Now(); e.amid(time.Since(from)) && ctx.Err() == nil; {
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (e *events) amid(waited time.Duration) bool {
	last := e.last.Load()
	return last != 0 && engine.AmidEvent(waited, time.Since(time.Unix(0, last)), e.newline.Load())
}

// endingBody turns the error that ending, or the end of a stranger's time, causes in a response body into a clean end.
type endingBody struct {
	io.ReadCloser
	ending, request context.Context
	events          *events
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.events.newline.Store(p[n-1] == '\n')
		b.events.last.Store(time.Now().UnixNano())
	}
	if err != nil && (b.ending.Err() != nil || errors.Is(b.request.Err(), context.DeadlineExceeded)) {
		err = io.EOF
	}
	return n, err
}

func (p *Proxy) endCleanly(res *http.Response, d *Decision, e *events) {
	if d.LongRunning && res.Body != nil && res.Body != http.NoBody {
		res.Body = &endingBody{ReadCloser: res.Body, ending: p.ending, request: res.Request.Context(), events: e}
	}
}
