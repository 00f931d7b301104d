package proxy

import (
	"cmp"
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

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// frames carries out decisions with proxy/h2: requests of HTTP/2 clients to HTTP/2 backends are
// forwarded frame by frame, all others go to Proxy.ServeHTTP.
type frames struct {
	p        *Proxy
	server   *h2.Server
	requests sync.Pool // of *frameRequest
	memory   *hold.Bound
	// unauthorized is errUnauthorized for clients that accept JSON: a hundred such responses, each
	// on a goroutine of its own, once kept the loop from a processor for 10 ms.
	unauthorized *engine.Answer
	conns        atomic.Uint32
}

// Frames returns a new engine. Its Run must run while it serves.
func (p *Proxy) Frames(cfg h2.Config) *h2.Server {
	l := &frames{p: p, unauthorized: readyAnswer(errUnauthorized), memory: cmp.Or(cfg.Memory, hold.New(0))}
	l.requests.New = func() any {
		r := &frameRequest{l: l, exchange: exchange{p: p, head: new(Head)}}
		r.bind()
		r.accept, r.done = r.onHead, r.onEnd
		return r
	}
	cfg.Decide = l.decide
	cfg.Source = func(remote string) string { return bound.Stranger(remote).Address }
	cfg.Dial = backend.Dial
	l.server = h2.New(cfg)
	p.frames = l
	p.cfg.Backends.SetEngine(l.server)
	if p.cfg.Local != nil {
		p.cfg.Local.SetEngine(l.server)
	}
	return l.server
}

// slot holds the state of a connection that its requests share.
type slot struct {
	once sync.Once
	conn authn.Conn
	stay *backend.Stay

	// Over HTTP/2 only, see frames.slot.
	remote, remoteIP string
	number           uint32
	tls              uint16
	set              []hpack.HeaderField // buffer for Decision.Set, for one decision at a time
}

type slotKey struct{}

// ConnContext gives a connection its slot; it fits http.Server.ConnContext. ctx should end with the connection.
func (p *Proxy) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, slotKey{}, &slot{stay: p.cfg.Local.Stay(ctx)})
}

// slotOf returns the slot of the request's connection. Without ConnContext the request has its own.
func slotOf(ctx context.Context) *slot {
	if s, ok := ctx.Value(slotKey{}).(*slot); ok {
		return s
	}
	return new(slot)
}

// of returns the connection. Nil means that it has no TLS, and so no client certificate.
func (s *slot) of(state *tls.ConnectionState) *authn.Conn {
	if state == nil {
		return nil
	}
	s.once.Do(func() { s.conn.Peer = state.PeerCertificates })
	return &s.conn
}

// frameRequest is one request over HTTP/2, reused after its end. Its func fields are made once.
type frameRequest struct {
	exchange
	l     *frames
	front *slot
	done  func(engine.Outcome) // onEnd, set by Frames
}

// usualSet is the number of fields set for most requests: a user with a few groups, and the fields of forwarded.
const usualSet = 12

// slot returns the connection's slot, which Proxy.ServeHTTP uses, too, so that its certificates are verified once.
func (l *frames) slot(c *h2.ConnInfo) *slot {
	s := slotOf(c.Context())
	s.of(&c.TLS)
	s.number, s.tls, s.set, s.remote = l.conns.Add(1), c.TLS.Version, make([]hpack.HeaderField, 0, usualSet), c.Remote.String()
	s.remoteIP = hostOnly(s.remote)
	return s
}

// decide is h2.Config.Decide. It parks a request that needs I/O, or a turn at the desk for the
// connection's certificates. A long head is decided at the desk, by Proxy.ServeHTTP.
func (l *frames) decide(c *h2.ConnInfo, h *wire.Head, resume func(engine.Plan)) (engine.Plan, bool) {
	conn, _ := c.Value.(*slot)
	if conn == nil {
		conn = l.slot(c)
		c.Value = conn
	}
	r := l.requests.Get().(*frameRequest) //nolint:forcetypeassert // the pool holds nothing else
	r.front, r.stay = conn, conn.stay
	*r.head = Head{Head: *h, Remote: conn.remote, RemoteIP: conn.remoteIP, Arrived: time.Now()}
	if r.head.costly() || l.p.browsers.concern(r.head) {
		return engine.Plan{Serve: r.offEngine()}, true
	}
	r.decision.Set = conn.set
	_, lacks := l.p.decide(&r.decision, r.head, &conn.conn, r.head.Arrived).(Need) //nolint:errorlint // nobody wraps it
	conn.set = r.decision.Set
	if !lacks {
		return l.plan(r), true
	}
	r.decision.Set = nil
	r.head.Fields = append(r.head.Fields[:0:0], h.Fields...) // valid only during this call
	go func() { resume(l.decideParked(r)) }()
	return engine.Plan{}, false
}

// plan returns the engine's plan for the decision.
func (l *frames) plan(r *frameRequest) engine.Plan {
	d := &r.decision
	r.startRecords()
	if ready := l.p.cfg.Ready; ready != nil && d.Action == ToDocument && !d.behind && r.observer == nil && r.head.Method == http.MethodGet {
		if answer := ready(r.head); answer != nil {
			if err := r.admit(); err != nil {
				return r.refuse(err)
			}
			return r.prepared(answer)
		}
	}
	if d.Action == Refuse && apierrors.IsUnauthorized(d.Err) && r.acceptsJSON() {
		return r.unwelcome(l.unauthorized, d.Err)
	}
	u := l.p.upstream(d, false)
	http2 := u != nil && u.HTTP2() && (l.p.browsers.hsts == "" || d.Action != ToRemote) // the engine adds no field to responses
	if http2 && l.p.givenUp.overLimit(d, r.head) {
		if !r.plain() { // else cheaper than by Proxy.ServeHTTP
			return engine.Plan{Serve: r.offEngine(), Unwelcome: true}
		}
		l.p.givenUp.refused.Inc()
		return r.unwelcome(l.p.givenUp.answer, errGivenUp)
	}
	if !http2 || r.observer.bodies(d) {
		return engine.Plan{Serve: r.offEngine(), GoAway: l.p.goAway()}
	}
	r.observer.begin(d)
	if err := r.admit(); err != nil {
		return r.refuse(err)
	}
	if err := l.p.enter(&r.held, d, u, d.source(r.head)); err != nil {
		return r.refuse(err)
	}
	r.upstream = u
	away := l.p.goAway() || d.Action == ToLocal && r.stay.Leaves()
	r.reach()
	r.begin()
	plan := r.plan()
	plan.Done, plan.GoAway = r.done, away
	r.dropBuffers()
	return plan
}

// refuse answers a request that got no place. Proxy.ServeHTTP must not take it: if a place became
// free, it would forward over connections of its own. A client that accepts JSON needs no goroutine
// either: three thousand at once kept other requests waiting for 60 ms.
func (r *frameRequest) refuse(err *apierrors.StatusError) engine.Plan {
	if !r.acceptsJSON() {
		r.dropBuffers()
		return engine.Plan{Serve: r.answer(err), Done: r.done, GoAway: r.l.p.goAway()}
	}
	r.own = err
	return r.prepared(readyAnswer(err))
}

// prepared returns a plan that sends a prepared response, with the time limit of limitReading.
func (r *frameRequest) prepared(a *engine.Answer) engine.Plan {
	p := r.l.p
	return engine.Plan{Answer: a, Set: r.answerFields(), Done: r.done, GoAway: p.goAway(), Deadline: p.pageTime + p.unreadRest}
}

// acceptsJSON reports whether readyAnswer suits: the client accepts JSON first, and nothing else is needed.
func (r *frameRequest) acceptsJSON() bool {
	accept := r.head.get("accept")
	return (accept == "" || strings.HasPrefix(accept, "application/json") || strings.HasPrefix(accept, "*/*")) && r.plain()
}

// plain reports whether a refusal needs nothing but its response.
func (r *frameRequest) plain() bool { return r.observer == nil && r.head.Method != http.MethodHead }

// unwelcome sends a prepared response and charges the connection for it.
func (r *frameRequest) unwelcome(a *engine.Answer, err error) engine.Plan {
	r.own = err
	return engine.Plan{Answer: a, Set: r.answerFields(), Done: r.done, Unwelcome: true}
}

// answerFields returns the fields of a response of ours. It reuses the buffer of the request's
// fields, which are not sent.
func (r *frameRequest) answerFields() []hpack.HeaderField {
	set := append(r.decision.Set[:0], hpack.HeaderField{Name: auditHeader, Value: r.audit, Sensitive: true})
	if hsts := r.l.p.browsers.hsts; hsts != "" {
		set = append(set, hpack.HeaderField{Name: "strict-transport-security", Value: hsts})
	}
	r.dropBuffers()
	return set
}

// dropBuffers drops references to the connection's buffers: the request may last for hours.
func (r *frameRequest) dropBuffers() {
	if r.head.Fields != nil {
		r.agent = r.head.agent()
	}
	r.decision.Set, r.head.Fields, r.decision.learned = nil, nil, nil
}

// onHead is called for every final response head.
func (r *frameRequest) onHead(status int, leads bool) http.Handler {
	h := r.onResponse(status, leads)
	if h == nil {
		r.observer.responded(status)
	}
	return h
}

func (r *frameRequest) onEnd(o engine.Outcome) {
	if o.Duration == 0 { // answered in the turn of the loop in which it came
		o.Duration = time.Since(r.head.Arrived)
	}
	r.carried(&o, o.Duration)
	gaveUp := o.Reason == engine.ReasonClientReset || o.Reason == engine.ReasonClientLost
	r.finish(&ending{Outcome: o, proto: "HTTP/2.0", tls: r.front.tls, conn: r.front.number, gaveUp: gaveUp})
	r.l.recycle(r)
}

// offEngine recycles the request and returns its handler, which decides again, with what is
// learned. The request still arrived when its first head did, before a TokenReview.
func (r *frameRequest) offEngine() http.Handler {
	p, arrived, known := r.l.p, r.head.Arrived, r.decision.learned
	r.l.recycle(r)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { p.serve(w, req, arrived, known) })
}

func (l *frames) recycle(r *frameRequest) {
	*r.head, r.decision, r.audit, r.agent = Head{}, Decision{}, "", ""
	r.upstream, r.front, r.stay, r.observer, r.own = nil, nil, nil, nil, nil
	l.requests.Put(r)
}

func (p *Proxy) answer(err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.writeError(w, r, err) })
}
