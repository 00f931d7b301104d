package proxy

import (
	"net/http"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// exchange is one request on its way, whichever protocol it has come over.
type exchange struct {
	p        *Proxy
	head     *Head
	conn     *authn.Conn
	decision Decision
	// upstream is what carries the request, once it is forwarded. relayed says that the health relay
	// asks for it.
	upstream *backend.Upstream
	relayed  bool
	held     place
	audit    string // Audit-ID
	// follow is set when there is an audit log or tracing.
	follow *follow
	// events are those of a long-running response.
	events events
	// own is the error that this process has answered with. Nil: somebody else answered, or there was no error.
	own error
	// ended is how the engine has carried the request. Nil: it has not.
	ended *ended

	// What a plan calls, made by bind.
	remove   func(string) bool
	withhold func(string) bool
	accept   func(int) http.Handler
	fail     func(h2.Outcome) http.Handler
}

func (x *exchange) bind() {
	x.remove, x.withhold = x.removes, x.withholds
	x.accept, x.fail = x.onResponse, x.onFailure
}

// plan is a decision to forward in the engine's words.
//
//fairlead:loop
func (x *exchange) plan() h2.Plan {
	d := &x.decision
	remove, set := x.remove, d.Set
	if x.follow != nil && x.follow.span != nil {
		remove, set = x.removesTrace, x.follow.span.Fields(set)
	}
	again := d.Request.Verb == "get" || d.Request.Verb == "list" || d.Request.Verb == "head"
	p := x.upstream.Plan()
	p.Authority, p.Remove, p.RemoveResponse, p.Set = d.host(x.head), remove, x.withhold, set
	p.Deadline, p.LongRunning, p.Again, p.Accept, p.Fail = d.Timeout, d.LongRunning, again && !d.LongRunning, x.accept, x.fail
	return p
}

// removes reports whether a field or trailer stays behind. Trailer is only an announcement (RFC 9110 §6.6.2), and the engine forwards trailers.
func (x *exchange) removes(name string) bool {
	return name != "trailer" && x.decision.Strip.Removes(name)
}

// removesTrace is removes where a span takes the place of the client's.
func (x *exchange) removesTrace(name string) bool {
	return tracing.Carries(name) || x.removes(name)
}

// withholds is the same for what the backend answers.
func (x *exchange) withholds(name string) bool {
	return name != "trailer" && x.decision.withholds(name)
}

// onResponse sees every final response head. Not nil: who answers in its place.
func (x *exchange) onResponse(status int) http.Handler {
	d := &x.decision
	if d.Action == ToLocal {
		x.p.cfg.Authn.Seen(&d.Credentials, status)
	} else if x.p.rejects(status) {
		return x.answer(errRedirect(d.Entry.Name))
	}
	return nil
}

func (x *exchange) onFailure(o h2.Outcome) http.Handler {
	return x.answer(forwardError(x.decision.name(), frameError(o)))
}

// answer is a handler that answers with err. It may run after the request has ended.
func (x *exchange) answer(err error) http.Handler {
	x.own = err
	p, audit := x.p, x.audit
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Audit-Id", audit)
		p.writeError(w, req, err)
	})
}

// carried is told how the engine has ended a request that it forwarded.
func (x *exchange) carried(o *h2.Outcome) {
	if o.Answer > 0 && !x.decision.LongRunning {
		x.upstream.Observe(o.Endpoint.Name, o.Answer)
		x.upstream.Finish(o.Duration)
	}
	x.held.leave()
}

// finished is what the protocol of a request's client knows of its end.
type finished struct {
	proto  string
	conn   uint32 // the connection's number, by which lines of the access log are in order
	status int    // 0: the client went away before an answer
	bytes  int64
	took   time.Duration
	at     time.Time // zero: now
	gaveUp bool      // the client has given the request up
}

// finish is the end of every request: it is counted, and written down wherever that is wanted. What the
// engine has made of it is o, the zero Outcome if it has not carried it.
func (x *exchange) finish(f *finished, o *h2.Outcome) {
	p, d := x.p, &x.decision
	if f.status == 0 {
		f.status = statusClientGone
	}
	if f.gaveUp {
		p.givenUp.ended(d, x.head, f.took)
	}
	p.metrics.observe(d, f.status, f.took)
	if x.follow != nil {
		e := ending{status: f.status, own: x.own != nil, err: message(x.own, f.status), retries: o.Retries, wait: o.Wait, took: f.took}
		if e.err == "" {
			e.err = string(o.Reason)
		}
		if o.Endpoint != nil {
			e.endpoint = o.Endpoint.Name
		}
		x.follow.end(d, &e)
	}
	if p.cfg.AccessLog != nil && p.cfg.AccessLog.Wants(f.status) {
		line := accesslog.Line{Proto: f.proto, Status: f.status, Bytes: f.bytes, Took: f.took, AuditID: x.audit, Ended: f.at}
		p.logAccess(f.conn, x.head, d, &line)
	}
}
