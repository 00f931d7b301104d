package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// EndLongRunning ends every watch cleanly: the client sees the end of the body, as after kube-apiserver's watch
// timeout, and starts a new watch elsewhere. Long-running responses with an end of their own, such as logs, are reset,
// and other requests continue. It is a drain's step in the grace period for watches: they end within grace, and not all
// at once, as at kube-apiserver, which ends 200 a second.
func (p *Proxy) EndLongRunning(grace time.Duration) {
	p.endBy.CompareAndSwap(nil, new(time.Now().Add(grace)))
	p.end()
	p.frames.server.EndLongRunning(grace)
}

// Leave closes every HTTP/1.1 connection after its next response, the first step of a drain. HTTP/1.1 cannot tell which
// requests will still be processed: one that arrives while its idle connection is closed would be lost.
func (p *Proxy) Leave() { p.leaving.Store(true) }

// RejectNew answers new requests, but for health and metrics, with 429 and Retry-After (--shutdown-send-retry-after).
func (p *Proxy) RejectNew() { p.rejecting.Store(true) }

// goAway reports whether a client is asked to reconnect: at random (--goaway-chance), or it would stay with the replica
// that started first, and always while new requests are rejected, or it would send them here again.
func (p *Proxy) goAway() bool {
	chance := p.cfg.GoAwayChance
	return p.rejecting.Load() || chance > 0 && rand.Float64() < chance //nolint:gosec // needs no secret
}

// endable returns a request that EndLongRunning ends between two events.
func (p *Proxy) endable(r *http.Request, e *events) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(p.ending, func() { //nolint:contextcheck // what ends is the process, not the request
		latest.Sleep(ctx, rand.N(max(1, time.Until(*p.endBy.Load())))) //nolint:gosec // needs no secret
		e.await(ctx)
		cancel()
	})
	return r.WithContext(ctx), func() { stop(); cancel() }
}

type events struct {
	mu      sync.Mutex // guards the following fields
	last    time.Time  // when bytes last arrived; zero means never
	newline bool       // the last byte ended a line
}

// await returns when the response is probably between two events, by the engine's rule.
func (e *events) await(ctx context.Context) {
	const every = 5 * time.Millisecond // short against the time between two events
	from := time.Now()
	_ = wait.PollUntilContextCancel(ctx, every, true, func(context.Context) (bool, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.last.IsZero() || !engine.AmidEvent(time.Since(from), time.Since(e.last), e.newline), nil
	})
}

// endingBody turns a read error into a clean end of the response body, if a drain, the end of a stranger's time,
// closing a connection that is no longer trusted, or, of what resumes (engine.Plan), its loss caused it.
type endingBody struct {
	io.ReadCloser
	request context.Context
	events  *events
	ended   *ended
	resumes bool
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.events.mu.Lock()
		b.events.last, b.events.newline = time.Now(), p[n-1] == '\n'
		b.events.mu.Unlock()
	}
	switch over := b.request.Err(); {
	case err == nil || err == io.EOF:
	case errors.Is(err, net.ErrClosed), over != nil && b.ended.client.Err() == nil:
		b.ended.broke(cmp.Or(reasonOf(over), engine.ReasonRetired))
		err = io.EOF
	case b.resumes && over == nil && reasonOf(err) == engine.ReasonNone: // else it cannot be understood
		b.ended.broke(engine.ReasonLost)
		err = io.EOF
	}
	return n, err
}

func (x *exchange) endCleanly(ctx context.Context, res *http.Response) {
	if x.decision.LongRunning && !x.finite() && res.Body != nil && res.Body != http.NoBody {
		res.Body = &endingBody{res.Body, ctx, &x.events, x.ended, x.decision.Action == ToLocal}
	}
}

// sessions are the upgraded connections. net/http forgets a connection after Hijack, so a shutdown
// must end them here. Their number is bounded by the limits that each request passed.
type sessions struct {
	open   atomic.Int64
	ending context.Context    // done when every session must end
	end    context.CancelFunc // of ending
}

// Sessions returns the number of open upgraded sessions (exec, port-forward, consoles).
func (p *Proxy) Sessions() int { return int(p.sessions.open.Load()) }

// EndSessions ends all sessions, also those that begin later. It returns when they and all other
// requests of ServeHTTP are recorded, or when ctx ends. It is the last step of a drain.
func (p *Proxy) EndSessions(ctx context.Context) {
	p.sessions.end()
	const every = 20 * time.Millisecond // short compared with the end of a process
	recorded := func(context.Context) (bool, error) { return p.serving.Load() == 0, nil }
	_ = wait.PollUntilContextCancel(ctx, every, true, recorded)
}
