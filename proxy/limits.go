package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// limits limit the requests in flight to all remotes together, without long-running ones (--max-requests-inflight,
// --max-mutating-requests-inflight). The local apiserver has its own. Proxy.enter takes the places.
type limits struct{ reads, writes limit }

// limit is one limit. The zero limit limits nothing.
type limit struct {
	max    int64
	share  int64 // of max, for one backend: half, so that a slow one leaves room for others; at least one
	write  bool
	places bound.Places
}

func newLimit(most int, write bool) limit {
	return limit{max: int64(most), share: int64(most - most/2), write: write, places: bound.Places{Lend: true}}
}

func (l *limits) of(verb string) *limit {
	switch verb {
	case "get", "list", "watch", "head", "options", "proxy":
		return &l.reads
	}
	return &l.writes
}

// place is what a forwarded request holds while it is in flight. The zero place holds nothing.
type place struct {
	slow bool // set before the place is taken: a stranger can make the request last
	// server is one of all remotes' places, share one of its upstream's share, backend one of the upstream's own.
	server, share, backend bound.Place
	count                  *atomic.Int64
}

// source returns the source of a request for all limits: its user, or with impersonation the impersonator; the token if
// it is proven, because only the local apiserver knows its user; otherwise the client's address and connection.
func (d *Decision) source(h *Head) bound.Source {
	u := caller(d)
	if u == nil && d.Pool == authn.PoolProven {
		return bound.Source{User: d.Credentials.Payer}
	}
	return bound.Caller(u, h.Remote)
}

// UnderWay returns the number of forwarded requests in flight, without upgraded sessions.
func (p *Proxy) UnderWay() int {
	return int(p.underWay.requests.Load()+p.underWay.longRunning.Load()) - p.Sessions()
}

func (p *Proxy) active() prometheus.Collector {
	active := prometheus.NewDesc("fairlead_requests_active",
		"Requests under way, by kind: request, watch (all long-running ones), session (upgraded).",
		[]string{"kind"}, nil)
	return metric.Gauges{All: []*prometheus.Desc{active}, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
		requests, long, sessions := p.underWay.requests.Load(), p.underWay.longRunning.Load(), p.sessions.open.Load()
		gauge(active, float64(requests), "request")
		gauge(active, float64(max(long-sessions, 0)), "watch")
		gauge(active, float64(sessions), "session")
	}}
}

// enter takes the places of a request that is ready to be forwarded: for a remote, one of all remotes and one of its
// upstream; for an unproven token, one of its pool. The local apiserver limits other requests itself.
func (p *Proxy) enter(held *place, d *Decision, u *backend.Upstream, from bound.Source) *apierrors.StatusError {
	held.count = &p.underWay.requests
	if d.LongRunning {
		held.count = &p.underWay.longRunning
	}
	held.count.Add(1)
	if d.Action != ToRemote && d.Pool != authn.PoolUnproven {
		return nil
	}
	var ok bool
	if l := p.limits.of(d.Request.Verb); d.Action == ToRemote && !d.LongRunning && l.max > 0 {
		whose := "the front door"
		if held.server, ok = l.places.Take(from, 1, l.max); ok {
			whose = d.name()
			held.share, ok = u.Share(l.write).Take(from, 1, l.share)
		}
		if !ok {
			u.Refuse(from, false)
			held.leave()
			return errBusy(whose)
		}
	}
	if held.backend, ok = u.Acquire(from, d.LongRunning || held.slow); !ok {
		held.leave()
		return errBusy(d.name())
	}
	return nil
}

// room reports whether enter would let a request of from to a remote in now.
func (p *Proxy) room(d *Decision, from bound.Source) bool {
	l, u := p.limits.of(d.Request.Verb), p.upstream(d, false)
	server := d.LongRunning || l.places.Room(from, l.max) && (u == nil || u.Share(l.write).Room(from, l.share))
	return server && (u == nil || u.Room(from, d.LongRunning))
}

func (h *place) leave() {
	if h.count != nil {
		h.count.Add(-1)
	}
	h.server.Leave()
	h.share.Leave()
	h.backend.Leave()
	*h = place{}
}

func full(err error) bool { return errors.Is(err, bound.ErrFull) }

// A request takes its places when it is ready to be sent, and gives them back by these times.
const (
	// bodyTime limits the wait for a body that is read before its request is sent, of at most 256 KiB: kube-apiserver's
	// limit for the whole request (--request-timeout), so a slower client was never served.
	bodyTime = time.Minute
	// strangerTime limits how long a request of the unproven pool holds its place: kube-apiserver's --request-timeout.
	strangerTime = time.Minute
	// strangerWatch is that of long-running ones: kube-apiserver ends a watch within twice its --min-request-timeout.
	strangerWatch = time.Hour
	maxProven     = 64 << 10 // of a token: a proof holds it for up to 10 s, though its client has canceled
)

// strangersTime returns how long a request may hold its place. Zero means that it holds no place of the unproven pool.
func strangersTime(d *Decision) time.Duration {
	switch {
	case d.Action != ToLocal || d.Pool != authn.PoolUnproven:
		return 0
	case d.LongRunning:
		return strangerWatch
	}
	return strangerTime
}

// maxEchoed is the longest method or target whose refusal surely fits into the buffer of a client that does not read:
// kube-apiserver's 403 repeats them, as it does who is to be impersonated, and JSON has six bytes for some.
const maxEchoed = 8 << 10

// within limits a request to its time or that for its place, and lets EndLongRunning end a long-running one.
func (x *exchange) within(r *http.Request) (*http.Request, context.CancelFunc) {
	d := &x.decision
	ctx, cancel := r.Context(), context.CancelFunc(func() {})
	if limit := cmp.Or(d.Timeout, strangersTime(d)); limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		r = r.WithContext(ctx)
	}
	if !d.LongRunning {
		return r, cancel
	}
	r, end := x.p.endable(r, &x.events)
	return r, func() { end(); cancel() }
}

// prove asks the local apiserver whether it accepts the unproven token of a long-running request, so that the request
// can use the proven pool. After a restart of Fairlead, all watches and sessions of the cluster return with tokens that
// it has not seen. They must neither hold a place of the unproven pool for hours nor share a connection with tokens
// that may be bad. Concurrent requests with one token share a proof.
func (x *exchange) prove(ctx context.Context, from bound.Source) error {
	d := &x.decision
	token := d.Credentials.Token.Secret()
	if d.Action != ToLocal || d.Pool != authn.PoolUnproven || !d.LongRunning || !d.Credentials.Provable() ||
		len(token) > maxProven || !httpguts.ValidHeaderFieldValue(token) { // a WebSocket's JWT may have a line's end
		return nil
	}
	//nolint:contextcheck // requests share it: it must not end with the first of them
	proof := x.p.proofs.DoChan(token, func() (any, error) {
		return x.p.cfg.Local.Prove(context.Background(), token, from, x.stay)
	})
	select {
	case <-ctx.Done():
		return fmt.Errorf("proving a token: %w", ctx.Err())
	case r := <-proof:
		if r.Err != nil {
			return r.Err
		}
		status, _ := r.Val.(int)
		x.p.cfg.Authn.Seen(&d.Credentials, status)
	}
	d.Pool = x.p.cfg.Authn.Pool(&d.Credentials)
	return nil
}

// hold reads a short body of announced length before its request takes any of the local apiserver's
// places for strangers. Others' bodies are sent as they come.
func (x *exchange) hold(w http.ResponseWriter, r *http.Request, from bound.Source) (end func(), err error) {
	// An upgrade may have no body. A client that expects 100 Continue sends its body only to a server that wants it.
	if r.ContentLength <= 0 || x.head.Upgrade != "" || x.decision.Action != ToLocal || expects(r) {
		return func() {}, nil
	}
	// Only writers of this process itself have no deadlines; their bodies are in memory.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(x.p.bodyTime))
	if end, err = x.upstream.Hold(r, from); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errSlowBody
	}
	_ = control.SetReadDeadline(time.Time{})
	return end, err
}

// noPlace answers a request that got no place. Callers of the health relay are load balancers. Load from other callers
// must not make them take this replica out, and the prober's own result is at most two seconds old.
func (x *exchange) noPlace(w http.ResponseWriter, r *http.Request, err error) {
	if x.relayed && x.p.cfg.Local.Ready() == nil {
		x.decision.Action = ToHealth // for the audit log: the local apiserver has none of it
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte("ok")) // a caller that has gone needs no response
		return
	}
	x.p.writeError(w, r, err)
}

// givenUp limits how fast one user may cancel requests that have just begun. Each is work for a backend at no cost to
// the user (CVE-2023-44487), and users share the backends' connections: Go's HTTP/2 server closes a connection on which
// requests come and go faster than it starts them. proxy/h2's limits for a connection do not stop a user who opens one
// connection after another. A user over the limit gets 429 until the debt has run down; no backend gets the request.
// Only users who cancel are charged. Others read one atomic, unless some user is over the limit.
type givenUp struct {
	burst int                            // requests that may be canceled at once
	pause time.Duration                  // time after which one more may be canceled
	debts *memo.Cache[account, struct{}] // each expires when its user's debt is zero

	mu      sync.Mutex                // orders charges
	until   atomic.Pointer[time.Time] // when the last user will be below the limit again. Nil means all are
	refused prometheus.Counter
	answer  *engine.Answer // errGivenUp over HTTP/2, always in JSON: encoding it for each refusal would cost too much
}

// account identifies a user: a request's source, over all connections. Tokens can be made up, so all unproven tokens of
// an address are one account. Requests without a token are another: they cost less, and must not keep out new tokens.
type account struct {
	bound.Source
	bearer bool // an unproven token
}

const (
	// quickly is the time within which a canceled request is charged. A request that ran longer held a place of its
	// APIService's limit, or the local apiserver limited it; and a client may well end all its watches at once.
	quickly = time.Second
	// givenUpBurst and givenUpPause, 200 a second, are twice proxy/h2's limits for a connection, far above controllers.
	givenUpBurst = 1000
	givenUpPause = 5 * time.Millisecond
	maxAccounts  = 8192 // limits the charged users, about 1 MiB
)

func newGivenUp() *givenUp {
	return &givenUp{
		burst: givenUpBurst, pause: givenUpPause, answer: readyAnswer(errGivenUp),
		debts: memo.New[account, struct{}](memo.Config{Entries: maxAccounts, Bytes: maxAccounts}),
		refused: metric.Count("fairlead_given_up_refused_total",
			"Requests answered with 429 because their user had canceled too many others within a second."),
	}
}

// ended is called for every forwarded request that its client has given up. A watch that was answered has no other end.
func (g *givenUp) ended(d *Decision, h *Head, status int, took time.Duration) {
	if took >= quickly || d.LongRunning && status != statusClientGone || d.Action != ToLocal && d.Action != ToRemote {
		return
	}
	g.charge(accountOf(d, h), 1)
}

// charge charges a user for n requests, up to twice the burst: no user waits longer than the burst takes to refill.
func (g *givenUp) charge(who account, n int) {
	full := time.Duration(g.burst) * g.pause
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	at := now.Add(min(g.debt(who, now)+time.Duration(n)*g.pause, 2*full))
	g.debts.Put(&memo.Entry[account, struct{}]{Key: who, Size: 1, Until: at})
	if below, last := at.Add(-full), g.until.Load(); below.After(now) && (last == nil || below.After(*last)) {
		g.until.Store(&below)
	}
}

// debt returns the time until a user's debt will be zero.
func (g *givenUp) debt(who account, now time.Time) time.Duration {
	if e := g.debts.Get(who, now); e != nil {
		return e.Until.Sub(now)
	}
	return 0
}

func (g *givenUp) overLimit(d *Decision, h *Head) bool {
	until := g.until.Load()
	if until == nil {
		return false
	}
	now := time.Now()
	if !until.After(now) {
		g.until.CompareAndSwap(until, nil)
		return false
	}
	return g.debt(accountOf(d, h), now) > time.Duration(g.burst)*g.pause
}

func accountOf(d *Decision, h *Head) account {
	from := d.source(h).AnyConn()
	return account{from, from.User == "" && d.Credentials.Kind == authn.KindToken}
}
