package proxy

import (
	"cmp"
	"net/http"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// exchange is one request and its response, over either protocol.
type exchange struct {
	p        *Proxy
	head     *Head
	conn     *authn.Conn
	stay     *backend.Stay // where the connection's requests go; may be nil
	decision Decision
	// upstream carries the request once it is forwarded. relayed says that the request is for the
	// health relay.
	upstream *backend.Upstream
	relayed  bool
	held     place
	audit    string // Audit-ID
	// observer is set if there is an audit log or tracing.
	observer *observer
	// events describes the body of a long-running response.
	events events
	// own is the error with which this process has answered. Nil means that it has not answered
	// with an error.
	own error
	// ended is the outcome of a request that ServeHTTP forwards, else nil.
	ended *ended

	// Callbacks of a plan, set by bind.
	remove   func(string) bool
	withhold func(string) bool
	accept   func(int, bool) http.Handler
	fail     func(h2.Outcome) http.Handler
}

func (x *exchange) bind() {
	x.remove, x.withhold = x.decision.Strip.Removes, x.withholds
	x.accept = x.onResponse
	x.fail = func(o h2.Outcome) http.Handler { return x.answer(forwardError(x.decision.name(), frameError(o))) }
}

// reach chooses the local apiserver for a request: another than the connection's if that lacks what
// it asks for.
func (x *exchange) reach() {
	local, d := x.p.cfg.Local, &x.decision
	if d.Action == ToLocal && !local.Alike() {
		x.stay = local.For(x.stay, d.Request.what())
	}
}

// plan returns the engine's plan for a decision to forward.
func (x *exchange) plan() h2.Plan {
	d := &x.decision
	remove, set := x.remove, d.Set
	if x.observer != nil && x.observer.span != nil {
		// The span replaces the client's.
		remove = func(name string) bool { return tracing.Carries(name) || x.decision.Strip.Removes(name) }
		set = x.observer.span.Fields(set)
	}
	// The method, not the verb: the verb of a path is in lower case, and get may stand for gET.
	again := x.head.Method == http.MethodGet || x.head.Method == http.MethodHead
	p := x.upstream.Plan(d.Request.proxied(), x.stay)
	from := d.source(x.head)
	p.Owner = cmp.Or(from.User, from.Address)
	p.Authority, p.Remove, p.RemoveResponse, p.Set = d.host(x.head), remove, x.withhold, set
	p.Deadline, p.LongRunning, p.Finite, p.Again, p.Accept, p.Fail = d.Timeout, d.LongRunning, x.finite(), again && !d.LongRunning, x.accept, x.fail
	return p
}

// finite reports whether a long-running response has an end of its own, so that a part of it must
// not look like the whole: a log that is not followed, or a download by the verb proxy.
func (x *exchange) finite() bool {
	r := &x.decision.Request
	if r.Subresource != "log" {
		return r.Verb != "watch"
	}
	follow, ok := param(x.head.RawQuery, "follow")
	return !ok || !saysYes(follow)
}

// withholds reports whether a field or trailer of the response is not forwarded. Trailer itself is:
// it is only an announcement (RFC 9110 §6.6.2).
func (x *exchange) withholds(name string) bool {
	return name != "trailer" && x.decision.withholds(name)
}

// onResponse is called for every final response head. A non-nil handler answers instead of the
// backend.
func (x *exchange) onResponse(status int, leads bool) http.Handler {
	d := &x.decision
	if d.Action == ToLocal {
		x.p.cfg.Authn.Seen(&d.Credentials, status)
		if d.rejectsOwnCredential(status) {
			return x.answer(x.p.credentialRejected())
		}
	} else if x.p.rejects(status, leads) {
		return x.answer(errRedirect(d.Entry.Name))
	}
	return nil
}

// answer returns a handler that answers with err. It may run after the request has ended.
func (x *exchange) answer(err error) http.Handler {
	x.own = err
	p, audit := x.p, x.audit
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Audit-Id", audit)
		p.browsers.sign(w.Header(), req)
		p.writeError(w, req, err)
	})
}

// carried is called with the outcome of a request that the engine has forwarded, and its duration
// since the arrival of its head.
func (x *exchange) carried(o *h2.Outcome, took time.Duration) {
	x.held.leave() // first, so that no panic costs a place
	if o.Answer > 0 && !x.decision.LongRunning {
		x.upstream.Observe(o.Endpoint.Name, o.Answer)
		x.upstream.Finish(took)
	}
}

// finished is what the client's protocol knows about the end of a request.
type finished struct {
	proto  string
	tls    uint16
	conn   uint32 // the connection's number, which keeps lines of the access log in order
	status int    // 0 means that the client went away before a response
	bytes  int64
	waited time.Duration // until the request was sent to a backend
	first  time.Duration // until the response head; zero means that there was none, or that it was not measured
	took   time.Duration
	gaveUp bool // the client has canceled the request
}

// writesLines reports whether a request that ends now may need an access-log line.
func (p *Proxy) writesLines() bool { return p.cfg.AccessLog != nil || p.cfg.Taps.Active() }

// finish ends every request: it counts the request, and logs it where that is wanted. o is the
// engine's outcome, or zero if the engine did not forward the request.
func (x *exchange) finish(f *finished, o *h2.Outcome) {
	p, d := x.p, &x.decision
	if f.status == 0 {
		f.status = statusClientGone
	}
	if f.gaveUp {
		p.givenUp.ended(d, x.head, f.status, f.took)
	}
	p.metrics.observe(d, f.status, f.took)
	x.observer.end(x, f.status, f.took, o)
	tapped := p.cfg.Taps.Active()
	logged := p.cfg.AccessLog != nil && p.cfg.AccessLog.Wants(f.status)
	if !tapped && !logged {
		return
	}
	line := x.line(f, o)
	if logged {
		p.cfg.AccessLog.Add(f.conn, &line) // ordered with other lines of its connection
	}
	if tapped {
		p.cfg.Taps.Add(&line)
	}
}
