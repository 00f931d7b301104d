package proxy

import (
	"bufio"
	"net"
	"net/http"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// statusClientGone is counted when the client went away before a response; it is never sent.
const statusClientGone = 499

// recorder records one request of ServeHTTP: it counts the request and writes its line of the
// access log.
type recorder struct {
	http.ResponseWriter
	proxy    *Proxy
	request  *http.Request
	exchange *exchange
	first    time.Duration // until the response head; zero means that no line is written
	status   int
	bytes    int64
	// bodies says that the audit log records bodies.
	bodies bool
}

// WriteHeader records the final status; interim ones are only passed on.
func (rec *recorder) WriteHeader(code int) {
	if code >= 200 && rec.status == 0 {
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
		rec.exchange.observer.event.Response(b[:n])
	}
	return n, err
}

// Flush and Hijack are found by type assertion in net/http/httputil and k8s.io/apiserver; Unwrap is
// for http.ResponseController.
func (rec *recorder) Flush() {
	if f, ok := rec.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack takes the connection over for an upgraded session.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	rec.responded(http.StatusSwitchingProtocols)
	return http.NewResponseController(rec.ResponseWriter).Hijack()
}

// Unwrap returns the wrapped writer.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// responded records the final status, just before the head is sent. Responses of this process get
// the header fields that kube-apiserver's filters add to its own responses.
func (rec *recorder) responded(status int) {
	rec.status = status
	x, h := rec.exchange, rec.Header()
	if x.p.writesLines() {
		rec.first = time.Since(x.head.Arrived)
	}
	if x.upstream == nil || x.own != nil {
		h["Audit-Id"] = []string{x.audit}
		if h["Cache-Control"] == nil {
			h["Cache-Control"] = []string{"no-cache, private"}
		}
	}
	if x.decision.Action != ToLocal || x.own != nil {
		x.p.browsers.sign(h, rec.request)
	}
	f := x.observer
	f.responded(status)
	if rec.bodies {
		f.event.ResponseHead(h.Get("Content-Type"), h.Get("Content-Encoding"))
	}
}

// observe starts the request's audit event and span. The returned request's body is recorded if the
// audit policy asks for bodies.
func (rec *recorder) observe(r *http.Request) *http.Request {
	x := rec.exchange
	x.observer = rec.proxy.observe(x.head, &x.decision, x.audit)
	x.observer.begin(&x.decision)
	if rec.bodies = x.observer.bodies(&x.decision); rec.bodies && r.Body != nil && r.Body != http.NoBody {
		r.Body = x.observer.event.Request(r.Body, r.Header.Get("Content-Type"))
	}
	return r
}

// done must be deferred: a handler that panics with http.ErrAbortHandler has ended its request,
// too.
func (rec *recorder) done() {
	if rec.exchange.observer != nil {
		if cause := recover(); cause != nil {
			defer panic(cause)
			rec.exchange.observer.panicked(cause)
		}
	}
	x := rec.exchange
	took := time.Since(x.head.Arrived)
	if x.ended != nil && x.ended.offEngine && x.own == nil && rec.status != 0 && rec.status != statusClientGone && !x.decision.LongRunning {
		x.upstream.Finish(took)
	}
	o := x.ended.get()
	f := finished{
		proto: rec.request.Proto, status: rec.status, bytes: rec.bytes, first: rec.first, took: took,
		// Only the server cancels the context, when the client has gone. A body that breaks off as
		// malformed counts as given up, too.
		gaveUp: rec.request.Context().Err() != nil || o.Reason == engine.ReasonClientReset,
	}
	if x.ended != nil {
		f.waited = x.ended.sent + o.Placed
		f.bytes += x.ended.down
	}
	if rec.request.TLS != nil {
		f.tls = rec.request.TLS.Version
	}
	x.finish(&f, &o)
}
