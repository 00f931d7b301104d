package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// frames carries out decisions on proxy/h2: what is forwarded from an HTTP/2 client to an HTTP/2 backend goes frame by frame, everything else is handed
// to Proxy.ServeHTTP.
type frames struct {
	p        *Proxy
	server   *h2.Server
	requests sync.Pool // of *frameRequest
	parked   parking
	// unauthorized is errUnauthorized for who accepts JSON: a hundred of them, each on a goroutine of its
	// own, kept the loop from a processor for 10 ms.
	unauthorized *h2.Answer
	conns        atomic.Uint32
}

// Frames returns the engine, whose Run must run while it serves. It is made anew by each call.
func (p *Proxy) Frames(cfg h2.Config) *h2.Server {
	l := &frames{p: p, unauthorized: readyAnswer(errUnauthorized())}
	l.requests.New = func() any { return newFrameRequest(l) }
	cfg.Decide = l.decide
	cfg.Dial = func(ctx context.Context, ep *h2.Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, error) {
		return ep.Value.(backend.Lease).Dial(ctx, ep, wrap) //nolint:forcetypeassert // as backend's Pick has made it
	}
	cfg.Closed = func(ep *h2.Endpoint, c *tls.Conn) { ep.Value.(backend.Lease).Closed(c) } //nolint:forcetypeassert // the same
	l.server = h2.New(cfg)
	p.frames = l
	if p.cfg.Backends != nil {
		p.cfg.Backends.Serve(l.server)
	}
	if p.cfg.Local != nil {
		p.cfg.Local.Serve(l.server)
	}
	return l.server
}

// frameConn is what is known of a client's connection beside its requests.
type frameConn struct {
	conn     *authn.Conn // the one that Proxy.ServeHTTP knows, too
	remote   string
	remoteIP string
	number   uint32
	set      []hpack.HeaderField // room for Decision.Set: one request is decided at a time, and a watch need not keep its own
}

// frameRequest is one request over HTTP/2, used again when it has ended. Its func fields are made once.
type frameRequest struct {
	exchange
	l     *frames
	front *frameConn
	done  func(h2.Outcome)
}

func newFrameRequest(l *frames) *frameRequest {
	r := &frameRequest{l: l, exchange: exchange{p: l.p, head: new(Head)}}
	r.bind()
	r.accept, r.done = r.onHead, r.onEnd
	return r
}

// usualSet is how many fields are set for most requests: a user with a few groups, and what forwarded adds.
const usualSet = 12

// newConn takes the slot that net/http has made for the connection, so that its certificates are verified once.
func (l *frames) newConn(c *h2.ConnInfo) *frameConn {
	conn := &frameConn{remote: c.Remote.String(), number: l.conns.Add(1), set: make([]hpack.HeaderField, 0, usualSet)}
	conn.remoteIP = hostOnly(conn.remote)
	if s := slotOf(c.Context()); s != nil {
		conn.conn = s.of(&c.TLS)
	} else {
		conn.conn = &authn.Conn{Peer: c.TLS.PeerCertificates}
	}
	return conn
}

// decide is h2.Config.Decide. What needs I/O, or a turn at the desk for the connection's certificates, is parked.
// A long head is decided at the desk, by Proxy.ServeHTTP.
//
//fairlead:loop
func (l *frames) decide(c *h2.ConnInfo, h *h2.Head, resume func(h2.Plan)) (h2.Plan, bool) {
	conn, _ := c.Value.(*frameConn)
	if conn == nil {
		conn = l.newConn(c)
		c.Value = conn
	}
	r := l.requests.Get().(*frameRequest) //nolint:forcetypeassert // nothing else is put there
	r.front = conn
	*r.head = Head{
		Method: h.Method, Authority: h.Authority, Path: h.Path, RawQuery: h.RawQuery, Fields: h.Fields, Remote: conn.remote, RemoteIP: conn.remoteIP, Arrived: time.Now(),
	}
	if r.head.dear() {
		l.recycle(r)
		return h2.Plan{Serve: l.p}, true
	}
	r.decision.Set = conn.set
	known := l.p.decide(context.Background(), &r.decision, r.head, conn.conn, false)
	conn.set = r.decision.Set
	if known {
		return l.plan(r), true
	}
	r.decision.Set = nil
	r.head.Fields = append(r.head.Fields[:0:0], h.Fields...) // they live only during this call
	if !l.parked.park(r.line(), r.head.size(), func() { resume(l.decideParked(r)) }) {
		l.recycle(r)
		return h2.Plan{Serve: l.p.answer(errBusy("the front door"))}, true
	}
	return h2.Plan{}, false
}

// plan is the decision in the engine's words.
//
//fairlead:loop
func (l *frames) plan(r *frameRequest) h2.Plan {
	d := &r.decision
	d.Set, r.audit = identified(d.Set, r.head)
	r.follow = l.p.follow(r.head, d)
	if answer := r.ready(); answer != nil {
		return r.says(answer)
	}
	if d.Action == Refuse && apierrors.IsUnauthorized(d.Err) && r.likesJSON() {
		return r.unwelcome(l.unauthorized, d.Err)
	}
	u := l.p.upstream(d, false)
	http2 := u != nil && u.HTTP2()
	if http2 && l.p.givenUp.owes(d, r.head) {
		return r.refuseGivenUp()
	}
	if !http2 || r.follow.bodies(d) {
		// Proxy.ServeHTTP decides again, from the caches.
		l.recycle(r)
		return h2.Plan{Serve: l.p, GoAway: l.p.goAway()}
	}
	r.follow.begin(d)
	if err := l.p.enter(&r.held, d, u, d.source(r.head)); err != nil {
		return r.refuse(err)
	}
	r.upstream = u
	plan := r.plan()
	plan.Done, plan.GoAway = r.done, l.p.goAway()
	r.keep()
	return plan
}

// refuse answers a request for which there is no place. Proxy.ServeHTTP is not asked: by then there may be one, and
// it would forward over connections of its own what belongs here. Nor is a goroutine begun for who accepts JSON: three
// thousand at once kept the requests of others waiting for 60 ms.
func (r *frameRequest) refuse(err *apierrors.StatusError) h2.Plan {
	if !r.likesJSON() {
		r.keep()
		return h2.Plan{Serve: r.answer(err), Done: r.done, GoAway: r.l.p.goAway()}
	}
	r.own = err
	return r.says(readyAnswer(err))
}

// says answers with a document, or a refusal, that need only be sent.
func (r *frameRequest) says(a *h2.Answer) h2.Plan {
	return h2.Plan{Answer: a, Set: r.named(), Done: r.done, GoAway: r.l.p.goAway()}
}

// refuseGivenUp answers by Proxy.ServeHTTP only where it must: who asks so has to cost little.
func (r *frameRequest) refuseGivenUp() h2.Plan {
	l := r.l
	if !r.plain() {
		l.recycle(r)
		return h2.Plan{Serve: l.p, Unwelcome: true}
	}
	l.p.givenUp.refused.Inc()
	return r.unwelcome(l.p.givenUp.answer, errGivenUp())
}

// likesJSON reports whether readyAnswer is how to refuse: the client likes JSON best, and nothing else is needed.
func (r *frameRequest) likesJSON() bool {
	accept := r.head.get("accept")
	return (accept == "" || strings.HasPrefix(accept, "application/json") || strings.HasPrefix(accept, "*/*")) && r.plain()
}

// plain reports whether a refusal needs nothing but its answer.
func (r *frameRequest) plain() bool { return r.follow == nil && r.head.Method != http.MethodHead }

// unwelcome answers with what was made beforehand, and charges the connection for it.
func (r *frameRequest) unwelcome(a *h2.Answer, err error) h2.Plan {
	r.own = err
	return h2.Plan{Answer: a, Set: r.named(), Done: r.done, Unwelcome: true}
}

// named is what an answer of ours has of its own, in the room of fields that nobody is sent.
func (r *frameRequest) named() []hpack.HeaderField {
	set := append(r.decision.Set[:0], hpack.HeaderField{Name: auditHeader, Value: r.audit, Sensitive: true})
	r.keep()
	return set
}

// keep lets go of what is the connection's: the request may last for hours.
func (r *frameRequest) keep() { r.decision.Set, r.head.Fields = nil, nil }

// ready returns the document that is asked for, if it need only be sent.
func (r *frameRequest) ready() *h2.Answer {
	ready := r.l.p.cfg.Ready
	if ready == nil || r.decision.Action != ToDocument || r.follow != nil || r.head.Method != http.MethodGet {
		return nil
	}
	return ready(r.head)
}

// onHead sees every final response head.
func (r *frameRequest) onHead(status int) http.Handler {
	h := r.onResponse(status)
	if h == nil {
		r.follow.responded(status)
	}
	return h
}

// frameError is the engine's reason in the words of proxy/backend, so that a client cannot tell them apart.
func frameError(o h2.Outcome) error {
	switch o.Reason {
	case h2.ReasonDeadline:
		return context.DeadlineExceeded
	case h2.ReasonNoEndpoint, h2.ReasonDial:
		return backend.ErrUnreachable
	case h2.ReasonBusy, h2.ReasonRefused:
		return errNoRoom
	case h2.ReasonBadResponse, h2.ReasonTooLarge:
		return backend.ErrBadResponse
	}
	return backend.ErrUnanswered // a backend may have executed it
}

func (r *frameRequest) onEnd(o h2.Outcome) {
	r.carried(&o)
	r.finish(&finished{
		proto: "HTTP/2.0", conn: r.front.number, status: o.Status, bytes: o.Sent, took: o.Duration, at: r.head.Arrived.Add(o.Duration),
		gaveUp: o.Reason == h2.ReasonClientReset || o.Reason == h2.ReasonClientLost,
	}, &o)
	r.l.recycle(r)
}

func (l *frames) recycle(r *frameRequest) {
	*r.head, r.decision, r.audit = Head{}, Decision{}, ""
	r.upstream, r.front, r.follow, r.own = nil, nil, nil, nil
	l.requests.Put(r)
}

// answer is a handler that answers with err.
func (p *Proxy) answer(err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.writeError(w, r, err) })
}
