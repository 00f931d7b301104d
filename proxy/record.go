package proxy

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

const statusClientGone = 499 // counted when the client went away before a response; it is never sent

// recorder counts one request of ServeHTTP, and writes its line of the access log.
type recorder struct {
	http.ResponseWriter
	request  *http.Request
	exchange *exchange
	first    time.Duration // until the response head; zero means that there was none
	status   int
	bytes    int64
	bodies   bool // the audit log records bodies
	late     bool // drop's time was over, which net/http takes for the end of the client
}

// WriteHeader records the final status; interim ones are only passed on.
func (rec *recorder) WriteHeader(code int) {
	if code >= 200 && rec.status == 0 {
		rec.responded(code)
	}
	rec.ResponseWriter.WriteHeader(code)
}

func (rec *recorder) Write(b []byte) (int, error) {
	if rec.status == 0 {
		rec.responded(http.StatusOK)
	}
	n, err := rec.ResponseWriter.Write(b)
	if rec.request.Method != http.MethodHead { // else nothing is sent
		rec.bytes += int64(n)
	}
	if rec.bodies {
		rec.exchange.event.Response(b[:n])
	}
	return n, err
}

func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	rec.responded(http.StatusSwitchingProtocols)
	return http.NewResponseController(rec.ResponseWriter).Hijack()
}

func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// responded records the final status before its head is sent. Own responses get the fields of kube-apiserver's filters.
func (rec *recorder) responded(status int) {
	rec.status = status
	x, h := rec.exchange, rec.Header()
	if x.own != nil && x.ended == nil { // the body went nowhere
		rec.drop()
	}
	rec.first = time.Since(x.head.Arrived)
	if x.upstream == nil || x.own != nil {
		h["Audit-Id"] = []string{x.auditID}
		if h["Cache-Control"] == nil {
			h["Cache-Control"] = []string{"no-cache, private"}
		}
	}
	if x.decision.Action != ToLocal || x.own != nil {
		x.p.browsers.sign(h, rec.request)
	}
	x.event.Started(status)
	if rec.bodies {
		x.event.ResponseHead(h.Get("Content-Type"), h.Get("Content-Encoding"))
	}
}

// drop reads a short body over HTTP/1.1, as net/http's server does, but not for ever. With a rest, package front would
// end the connection, which may end anyway. A client that waits for 100 Continue sends none.
func (rec *recorder) drop() {
	const short, most = 256 << 10, time.Second // the length is its; what was sent with the head is there at once
	r, control := rec.request, http.NewResponseController(rec.ResponseWriter)
	ends := r.Close || rec.Header()["Connection"] != nil
	if r.ProtoMajor == 1 && !ends && r.ContentLength > 0 && r.ContentLength <= short && !expects(r) {
		_ = control.SetReadDeadline(time.Now().Add(most))
		_, err := io.Copy(io.Discard, r.Body)
		rec.late = errors.Is(err, os.ErrDeadlineExceeded)
		_ = control.SetReadDeadline(time.Time{})
	}
}

// done must be deferred: a handler that panics with http.ErrAbortHandler has ended its request, too.
func (rec *recorder) done() {
	x := rec.exchange
	var o engine.Outcome
	if cause := recover(); cause != nil {
		defer panic(http.ErrAbortHandler)  // for any other, net/http writes a line at a level that nobody reads
		if cause != http.ErrAbortHandler { //nolint:errorlint,err113 // the value itself is meant: a client has gone
			x.p.log.Error("handler panicked",
				"panic", fmt.Sprint(cause), "path", x.head.Path, "audit", x.auditID, "stack", string(debug.Stack()))
			rec.status, o.Reason = cmp.Or(rec.status, http.StatusInternalServerError), engine.ReasonAbort
			if x.event != nil {
				x.event.Panicked()
				x.event = nil
			}
		}
	}
	took, cause := time.Since(x.head.Arrived), context.Cause(rec.request.Context())
	gone := cause != nil
	if e := x.ended; e != nil {
		if e.offEngine && x.own == nil && rec.status != 0 && rec.status != statusClientGone && !x.decision.LongRunning {
			x.upstream.Finish(took)
		}
		fault := o.Reason
		o = *cmp.Or(e.o.Load(), &o)
		o.Reason = cmp.Or(fault, o.Reason)
		o.Received, o.Sent, o.Placed = e.body.read.Load()+e.up, e.down, o.Placed+e.sent
		gone = gone && e.first.Load() != &e.down // after a session that its backend has ended, it always has
	}
	o.Status, o.Sent, o.Wait, o.Duration = rec.status, o.Sent+rec.bytes, rec.first, took
	if f, ended := errors.AsType[*engine.Failure](cause); ended {
		gone = gone && (f.Reason == engine.ReasonClientReset || f.Reason == engine.ReasonClientLost)
		if o.Reason == engine.ReasonNone || o.Reason == engine.ReasonClientReset {
			o.Reason = f.Reason // of the client's stream, or as at the end of a drain
		}
	}
	// Else only the server cancels the context: the client has gone, or its body is malformed, which counts, or late.
	gone = gone && !rec.late && x.own != errSlowBody //nolint:errorlint // nobody wraps it
	if x.front != nil {                              // else it is one of the admin port, which has no records
		x.finish(&o, rec.request.Proto, gone || o.Reason == engine.ReasonClientReset)
	}
}

// ended is the outcome of a request that ServeHTTP has forwarded. The engine may end the request
// before its client has the whole response, or after.
type ended struct {
	body      *uploaded
	offEngine bool                           // the engine does not carry the request
	sent      time.Duration                  // from its arrival until it was sent; zero means that no line is written
	up, down  int64                          // bytes of an upgraded session
	client    context.Context                // done when the client has gone
	first     atomic.Pointer[int64]          // up or down: which direction of a session has ended first
	o         atomic.Pointer[engine.Outcome] // nil while nothing is known
}

func (e *ended) at(address string) {
	e.o.Store(&engine.Outcome{Endpoint: &engine.Endpoint{Name: address}, Retries: -1})
}

// noteSent records that the request is sent to its backend now, and when, if it may need an access-log line.
func (x *exchange) noteSent() {
	x.ended.body.lent = true
	if x.p.cfg.AccessLog != nil || x.p.cfg.Taps.Active() {
		x.ended.sent = time.Since(x.head.Arrived)
	}
}

func (e *ended) broke(why engine.Reason) {
	if e.offEngine {
		o := *cmp.Or(e.o.Load(), new(engine.Outcome))
		o.Reason = why
		e.o.Store(&o)
	}
}

// finish ends every request over proto: it counts the request, and logs it where that is wanted. What only the engine
// knows of o is zero if that did not forward it. gaveUp says that the client has canceled it.
func (x *exchange) finish(o *engine.Outcome, proto string, gaveUp bool) {
	p, d := x.p, &x.decision
	x.leave()
	cut := o.Reason != engine.ReasonNone && !gaveUp // not the client has ended it
	if o.Status == 0 && cut {
		o.Status, cut = http.StatusServiceUnavailable, false
	}
	o.Status = cmp.Or(o.Status, statusClientGone)
	if gaveUp {
		p.givenUp.ended(d, x.head, o.Status, o.Duration)
	}
	code := o.Status
	if cut && x.own == nil && !d.LongRunning { // the client has a part of the response, whatever its head says
		code = http.StatusBadGateway
	}
	p.metrics.observe(d, code, o.Duration)
	x.endRecords(o, code)
	x.count(o, code)
	tapped := p.cfg.Taps.Active()
	logged := p.cfg.AccessLog != nil && p.cfg.AccessLog.Wants(code)
	if !tapped && !logged {
		return
	}
	line := x.line(o, proto, gaveUp)
	if logged {
		p.cfg.AccessLog.Add(x.front.number, &line) // ordered with other lines of its connection
	}
	if tapped {
		p.cfg.Taps.Add(&line)
	}
}

// maxCause bounds a backend's text: a GOAWAY's is shorter, names in a certificate may be longer. It
// bounds a User-Agent, too, of which kube-apiserver's components have 60 to 120 bytes.
const maxCause = 256

// agent returns the beginning of the User-Agent, without keeping the rest in memory.
func (h *Head) agent() string {
	a := h.get("user-agent")
	if len(a) > maxCause {
		a = strings.Clone(a[:maxCause])
	}
	return a
}

// line returns the line of the access log. The query is left out because it can hold secrets.
func (x *exchange) line(o *engine.Outcome, proto string, gaveUp bool) accesslog.Line {
	h, d := x.head, &x.decision
	line := accesslog.Line{
		Method: h.Method, Path: h.Path, Verb: d.Request.Verb, Proto: proto, Outcome: *o,
		Ended: h.Arrived.Add(o.Duration), From: h.RemoteIP, Agent: cmp.Or(x.agent, h.agent()), AuditID: x.auditID,
	}
	if x.front.tls != 0 {
		line.TLS = tls.VersionName(x.front.tls)
	}
	switch o.Reason {
	case engine.ReasonDial, engine.ReasonLost, engine.ReasonReset, engine.ReasonRefused, engine.ReasonBadResponse,
		engine.ReasonBlamed, engine.ReasonTooLarge:
		if o.Err != nil { // not of HTTP/1.1
			line.Cause = o.Err.Error()
			line.Cause = line.Cause[:min(len(line.Cause), maxCause)]
		}
	}
	end := "complete"
	if gaveUp {
		end = string(engine.ReasonClientLost)
	} else if x.own != nil || d.Action == Impersonate { // the filter has refused it
		end = "refused-here"
	}
	line.End = cmp.Or(string(o.Reason), end) // the engine's reason says more
	if u := cmp.Or(d.User, d.user); u != nil {
		line.User = u.GetName()
	}
	if d.Rule != nil {
		line.Rule = d.Rule.Name
	}
	if d.DryRun != nil {
		line.DryRun = d.DryRun.Name
	}
	if d.Impersonator != nil {
		line.Impersonator = d.Impersonator.GetName()
	}
	if d.Entry != nil {
		line.APIService = d.Entry.Name
	}
	return line
}
