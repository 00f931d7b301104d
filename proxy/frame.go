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

// frames carries out decisions with proxy/h2: from HTTP/2 to HTTP/2 frame by frame, all others by Proxy.ServeHTTP.
type frames struct {
	p        *Proxy
	server   *h2.Server
	requests sync.Pool // of *exchange, whose func fields are made once
	memory   *hold.Bound
	// unauthorized is errUnauthorized for clients that accept JSON: a hundred such responses, each
	// on a goroutine of its own, once kept the loop from a processor for 10 ms.
	unauthorized *engine.Answer
}

// Frames returns a new engine. Its Run must run while it serves.
func (p *Proxy) Frames(cfg h2.Config) *h2.Server {
	l := &frames{p: p, unauthorized: readyAnswer(errUnauthorized), memory: cmp.Or(cfg.Memory, hold.New(0))}
	l.requests.New = func() any {
		x := &exchange{p: p, head: new(Head)}
		x.bind()
		x.accept, x.done = x.onHead, x.onEnd
		return x
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
	once   sync.Once
	conn   authn.Conn
	tls    uint16 // version; zero means none
	stay   *backend.Stay
	number uint32 // keeps lines of the access log in order

	// Over HTTP/2 only, see frames.decide.
	remote, remoteIP string
	set              []hpack.HeaderField // buffer for Decision.Set, for one decision at a time
}

type slotKey struct{}

// ConnContext gives a connection its slot; it fits http.Server.ConnContext. ctx should end with the connection.
func (p *Proxy) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, slotKey{}, &slot{stay: p.cfg.Local.Stay(ctx), number: p.conns.Add(1)})
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
	s.once.Do(func() { s.conn.Peer, s.tls = state.PeerCertificates, state.Version })
	return &s.conn
}

const usualSet = 12 // the number of fields set for most requests: a user with a few groups, and the fields of forwarded

// decide is h2.Config.Decide. It parks a request that needs I/O, or a turn at the desk for the connection's
// certificates. Proxy.ServeHTTP decides long heads at the desk, and sends 100 Continue: over HTTP/2 nginx does not.
func (l *frames) decide(c *h2.ConnInfo, h *wire.Head, resume func(engine.Plan)) (engine.Plan, bool) {
	conn, _ := c.Value.(*slot)
	if conn == nil { // the first of a connection; Proxy.ServeHTTP uses the slot, too: certificates are verified once
		conn = slotOf(c.Context)
		conn.of(&c.TLS)
		conn.set, conn.remote = make([]hpack.HeaderField, 0, usualSet), c.Remote.String()
		conn.remoteIP = hostOnly(conn.remote)
		c.Value = conn
	}
	x := l.requests.Get().(*exchange) //nolint:forcetypeassert // the pool holds nothing else
	x.front, x.stay = conn, conn.stay
	*x.head = Head{Head: *h, Remote: conn.remote, RemoteIP: conn.remoteIP, Arrived: c.Now}
	if x.head.costly() || l.p.browsers.concern(x.head) || !h.EndStream && x.head.get("expect") != "" {
		return x.offEngine(), true
	}
	x.decision.Set = conn.set
	_, lacks := l.p.decide(&x.decision, x.head, &conn.conn, x.head.Arrived).(Need) //nolint:errorlint // nobody wraps it
	if conn.set = x.decision.Set; cap(conn.set) > 8*usualSet {
		conn.set = nil // it was for a user of many groups
	}
	if !lacks {
		return l.plan(x), true
	}
	x.decision.Set, x.parked = nil, true
	x.head.Fields = append(x.head.Fields[:0:0], h.Fields...) // valid only during this call
	go func() { resume(l.decideParked(x)) }()
	return engine.Plan{}, false
}

func (l *frames) plan(x *exchange) engine.Plan {
	d := &x.decision
	x.startRecords()
	mayBeReady := d.Action == ToDocument && !d.behind && !x.p.observes() && x.head.Method == http.MethodGet
	if ready := l.p.cfg.Ready; ready != nil && mayBeReady {
		if answer := ready(x.head); answer != nil {
			if err := x.admit(); err != nil {
				return x.refuse(err)
			}
			return x.prepared(answer)
		}
	}
	if d.Action == Refuse && apierrors.IsUnauthorized(d.Err) && x.acceptsJSON() {
		return x.unwelcome(l.unauthorized, d.Err)
	}
	u := l.p.upstream(d, false)
	// The engine adds no field to responses.
	http2 := u != nil && u.HTTP2() && (l.p.browsers.hsts == "" || d.Action != ToRemote)
	if http2 && l.p.givenUp.overLimit(d, x.head) {
		if !x.plain() { // else cheaper than by Proxy.ServeHTTP
			plan := x.offEngine()
			plan.Unwelcome = true
			return plan
		}
		l.p.givenUp.refused.Inc()
		return x.unwelcome(l.p.givenUp.answer, errGivenUp)
	}
	if !http2 || x.bodies() { // or its protocol is not known yet: exchange.forward learns it
		return x.offEngine()
	}
	x.received()
	if err := x.admit(); err != nil {
		return x.refuse(err)
	}
	if err := l.p.enter(&x.held, d, u, d.source(x.head)); err != nil {
		return x.refuse(err)
	}
	x.upstream = u
	away := l.p.goAway() || d.Action == ToLocal && x.stay.Leaves()
	x.reach()
	x.begin()
	plan := x.plan()
	plan.Done, plan.GoAway = x.done, away
	x.dropBuffers()
	return plan
}

// refuse answers a request that got no place. Proxy.ServeHTTP must not: if a place became free, it would forward over
// connections of its own. JSON needs no goroutine either: three thousand at once kept other requests waiting for 60 ms.
func (x *exchange) refuse(err *apierrors.StatusError) engine.Plan {
	if !x.acceptsJSON() {
		x.dropBuffers()
		return engine.Plan{Serve: x.answer(err), Done: x.done, GoAway: x.p.goAway()}
	}
	x.own = err
	return x.prepared(readyAnswer(err))
}

// prepared returns a plan that sends a prepared response, with the time limit of limitReading.
func (x *exchange) prepared(a *engine.Answer) engine.Plan {
	return engine.Plan{Answer: a, Set: x.answerFields(), Done: x.done, GoAway: x.p.goAway(), Deadline: x.p.pageTime}
}

// acceptsJSON reports whether readyAnswer suits: the client accepts JSON first, and nothing else is needed.
func (x *exchange) acceptsJSON() bool {
	accept := x.head.get("accept")
	first := accept == "" || strings.HasPrefix(accept, "application/json") || strings.HasPrefix(accept, "*/*")
	return first && x.plain()
}

// plain reports whether a refusal needs nothing but its response.
func (x *exchange) plain() bool { return !x.p.observes() && x.head.Method != http.MethodHead }

// unwelcome sends a prepared response and charges the connection for it. No rule was asked.
func (x *exchange) unwelcome(a *engine.Answer, err error) engine.Plan {
	x.own, x.decision.Rule, x.decision.DryRun = err, nil, nil
	return engine.Plan{Answer: a, Set: x.answerFields(), Done: x.done, Unwelcome: true, Deadline: x.p.pageTime}
}

// answerFields returns the fields of a response of ours, in the buffer of the request's fields, which are not sent.
func (x *exchange) answerFields() []hpack.HeaderField {
	set := append(x.decision.Set[:0], hpack.HeaderField{Name: auditHeader, Value: x.auditID, Sensitive: true})
	if hsts := x.p.browsers.hsts; hsts != "" {
		set = append(set, hpack.HeaderField{Name: "strict-transport-security", Value: hsts})
	}
	x.dropBuffers()
	return set
}

// dropBuffers drops references to the connection's buffers: the request may last for hours.
func (x *exchange) dropBuffers() {
	x.agent = cmp.Or(x.agent, x.head.agent())
	x.decision.Set, x.head.Fields, x.decision.learned = nil, nil, nil
}

func (x *exchange) onHead(status int, leads bool) http.Handler {
	h := x.onResponse(status, leads)
	if h == nil {
		x.event.Started(status)
	}
	return h
}

func (x *exchange) onEnd(o engine.Outcome) {
	if o.Duration == 0 { // answered in the turn of the loop in which it came
		o.Duration = time.Since(x.head.Arrived)
	}
	x.carried(&o, o.Duration)
	x.finish(&o, "HTTP/2.0", o.Reason == engine.ReasonClientReset || o.Reason == engine.ReasonClientLost)
	x.p.frames.recycle(x)
}

// offEngine returns the plan of a request that Proxy.ServeHTTP takes over. It decides again, with what is learned. The
// request still arrived when its first head did, before a TokenReview. A parked one's stream may have ended meanwhile:
// whichever of its handler and Done comes first records it.
func (x *exchange) offEngine() engine.Plan {
	p, arrived, known := x.p, x.head.Arrived, x.decision.learned
	serve := func(w http.ResponseWriter, req *http.Request) { p.serve(w, req, arrived, known) }
	plan := engine.Plan{Serve: http.HandlerFunc(serve), GoAway: p.goAway()}
	plan.LongRunning = x.decision.LongRunning || x.decision.Request.longRunning(nil) // the latter before impersonation
	if !x.parked {
		p.frames.recycle(x)
		return plan
	}
	left := new(atomic.Pointer[exchange])
	left.Store(x)
	plan.Serve = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if left.Swap(nil) != nil {
			serve(w, req)
		}
	})
	plan.Done = func(o engine.Outcome) {
		if x := left.Swap(nil); x != nil {
			x.decision.Rule, x.decision.DryRun = nil, nil // they were not asked
			x.received()
			x.onEnd(o)
		}
	}
	return plan
}

func (l *frames) recycle(x *exchange) {
	*x.head, x.decision, x.auditID, x.agent, x.parked = Head{}, Decision{}, "", "", false
	x.upstream, x.front, x.stay, x.span, x.event, x.late, x.own = nil, nil, nil, nil, nil, nil, nil
	l.requests.Put(x)
}
