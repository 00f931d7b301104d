package proxy

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// statusClientGone is what is counted when the client went away before an answer; nobody receives it.
const statusClientGone = 499

// recorder sees one request of the net/http lane from head to end: it counts it, and writes its line of the access log.
type recorder struct {
	http.ResponseWriter
	proxy    *Proxy
	request  *http.Request
	exchange *exchange
	began    time.Time
	status   int
	bytes    int64
}

func (p *Proxy) record(w http.ResponseWriter, r *http.Request, x *exchange) *recorder {
	return &recorder{ResponseWriter: w, proxy: p, request: r, exchange: x, began: time.Now()}
}

func (rec *recorder) writer() http.ResponseWriter { return rec }

// WriteHeader notes the final status; interim ones are passed on.
func (rec *recorder) WriteHeader(code int) {
	if rec.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		rec.status = code
	}
	rec.ResponseWriter.WriteHeader(code)
}

// Write counts the body.
func (rec *recorder) Write(b []byte) (int, error) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	n, err := rec.ResponseWriter.Write(b)
	rec.bytes += int64(n)
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
	rec.status = http.StatusSwitchingProtocols
	return http.NewResponseController(rec.ResponseWriter).Hijack()
}

// Unwrap returns the writer beneath.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// done is deferred: a handler that panics with http.ErrAbortHandler has ended its request too.
func (rec *recorder) done() {
	if rec.status == 0 {
		rec.status = statusClientGone
	}
	took := time.Since(rec.began)
	rec.proxy.metrics.observe(&rec.exchange.decision, rec.status, took)
	if p := rec.proxy; p.cfg.AccessLog != nil {
		p.logAccess(rec.exchange.head, &rec.exchange.decision, rec.request.Proto, rec.status, rec.bytes, took)
	}
}

// logAccess writes the access log's line. The query is left out: it can hold secrets.
func (p *Proxy) logAccess(h *Head, d *Decision, proto string, status int, bytes int64, took time.Duration) {
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs,
		slog.String("method", h.Method), slog.String("path", h.Path), slog.String("verb", d.Request.Verb), slog.Int("status", status),
		slog.Int64("bytes", bytes), slog.Duration("took", took), slog.String("proto", proto), slog.String("from", h.RemoteIP),
	)
	if d.User != nil {
		attrs = append(attrs, slog.String("user", d.User.GetName()))
	}
	if d.Impersonator != nil {
		attrs = append(attrs, slog.String("impersonator", d.Impersonator.GetName()))
	}
	if d.Entry != nil {
		attrs = append(attrs, slog.String("apiservice", d.Entry.Name))
	}
	p.cfg.AccessLog.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
}
