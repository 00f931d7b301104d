package proxy

import (
	"bufio"
	"net"
	"net/http"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// statusClientGone is what is counted when the client went away before an answer; nobody receives it.
const statusClientGone = 499

// recorder sees one request of ServeHTTP from head to end: it counts it, and writes its line of the access log.
type recorder struct {
	http.ResponseWriter
	proxy    *Proxy
	request  *http.Request
	exchange *exchange
	began    time.Time
	status   int
	bytes    int64
	// bodies says that the audit log wants them.
	bodies bool
}

func (p *Proxy) record(w http.ResponseWriter, r *http.Request, x *exchange) *recorder {
	return &recorder{ResponseWriter: w, proxy: p, request: r, exchange: x, began: time.Now()}
}

func (rec *recorder) writer() http.ResponseWriter { return rec }

// WriteHeader notes the final status; interim ones are passed on.
func (rec *recorder) WriteHeader(code int) {
	if code < 200 {
		rec.exchange.decision.clean(rec.Header())
	} else if rec.status == 0 {
		rec.responded(code)
	}
	rec.ResponseWriter.WriteHeader(code)
}

// Write counts the body.
func (rec *recorder) Write(b []byte) (int, error) {
	if rec.status == 0 {
		rec.responded(http.StatusOK)
	}
	n, err := rec.ResponseWriter.Write(b)
	rec.bytes += int64(n)
	if rec.bodies {
		rec.exchange.follow.event.Response(b[:n])
	}
	return n, err
}

// Flush and Hijack are found by type assertion in net/http/httputil and in k8s.io/apiserver; Unwrap is for http.ResponseController.
func (rec *recorder) Flush() {
	if f, ok := rec.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack hands the connection over; what follows is a session.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	rec.responded(http.StatusSwitchingProtocols)
	return http.NewResponseController(rec.ResponseWriter).Hijack()
}

// Unwrap returns the writer beneath.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// responded notes the final status, with which the head goes out. What is answered here gets what
// filters of kube-apiserver give to every answer of its own.
func (rec *recorder) responded(status int) {
	rec.status = status
	x, h := rec.exchange, rec.Header()
	if x.upstream == nil || x.own != nil {
		h["Audit-Id"] = []string{x.audit}
		if h["Cache-Control"] == nil {
			h["Cache-Control"] = []string{"no-cache, private"}
		}
	}
	f := x.follow
	f.responded(status)
	if rec.bodies {
		f.event.ResponseHead(h.Get("Content-Type"), h.Get("Content-Encoding"))
	}
}

// follow begins what the audit log and tracing want of a request, which it returns with a body that is recorded if they want that too.
func (rec *recorder) follow(r *http.Request) *http.Request {
	x := rec.exchange
	x.follow = rec.proxy.follow(x.head, &x.decision)
	x.follow.begin(&x.decision)
	if rec.bodies = x.follow.bodies(&x.decision); rec.bodies && r.Body != nil && r.Body != http.NoBody {
		r.Body = x.follow.event.Request(r.Body, r.Header.Get("Content-Type"))
	}
	return r
}

// done is deferred: a handler that panics with http.ErrAbortHandler has ended its request too.
func (rec *recorder) done() {
	if rec.exchange.follow != nil {
		if cause := recover(); cause != nil {
			defer panic(cause)
			rec.exchange.follow.panicked(cause)
		}
	}
	took := time.Since(rec.began)
	x := rec.exchange
	if x.ended == nil && x.upstream != nil && x.own == nil && rec.status != 0 && rec.status != statusClientGone && !x.decision.LongRunning {
		x.upstream.Finish(took)
	}
	o := x.ended.get()
	x.finish(&finished{
		proto: rec.request.Proto, status: rec.status, bytes: rec.bytes, took: took,
		// Only the server ends the context, when the client has. A body that breaks off as nonsense gives its request up, too.
		gaveUp: rec.request.Context().Err() != nil || o.Reason == h2.ReasonClientReset,
	}, &o)
}

// logAccess writes the access log's line, of which finish has filled in how the request has ended. Lines of one key stay in order. The query is left out: it
// can hold secrets.
func (p *Proxy) logAccess(key uint32, h *Head, d *Decision, line *accesslog.Line) {
	line.Method, line.Path, line.Verb, line.From = h.Method, h.Path, d.Request.Verb, h.RemoteIP
	if d.User != nil {
		line.User = d.User.GetName()
	}
	if d.Impersonator != nil {
		line.Impersonator = d.Impersonator.GetName()
	}
	if d.Entry != nil {
		line.APIService = d.Entry.Name
	}
	p.cfg.AccessLog.Add(key, line)
}
