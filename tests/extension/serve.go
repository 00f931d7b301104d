package extension

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serve handles one request of either protocol: record, misbehave or answer, complete the record.
func (s *Server) serve(rw http.ResponseWriter, r *http.Request, x *exchange) {
	s.stats.requests.Add(1)
	if !x.conn.verified {
		s.stats.unverified.Add(1)
	}
	fault, faulty := s.faults.take(r.Method, r.RequestURI, asksAggregated(r))
	rec := s.ring.add(r, x, fault.Kind)
	w := &answer{ResponseWriter: rw}
	body := &bodyCount{ReadCloser: r.Body}
	r.Body = body
	defer func() { s.ring.finish(rec, r, body, w.status) }() // also when a fault panics
	if faulty && !s.misbehave(w, r, x, fault) {
		return
	}
	start := time.Now()
	s.respond(w, r, x)
	if w.hijacked {
		return
	}
	// What nobody read still counts; 8 MiB is more than any test sends.
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 8<<20))
	if !faulty {
		s.pace.add(time.Since(start))
	}
}

func (s *Server) respond(w http.ResponseWriter, r *http.Request, x *exchange) {
	if s.cfg.Wrap == nil {
		s.route(w, r, x)
		return
	}
	s.cfg.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.route(w, r, x) })).ServeHTTP(w, r)
}

// route finds the handler.
func (s *Server) route(w http.ResponseWriter, r *http.Request, x *exchange) {
	if !x.conn.verified && s.cfg.RejectWith != 0 {
		writeStatus(w, s.cfg.RejectWith, "the request-header CA does not vouch for the caller")
		return
	}
	switch path := r.URL.EscapedPath(); {
	case path == "/healthz" || path == "/livez" || path == "/readyz":
		_, _ = io.WriteString(w, "ok")
	case path == "/openapi/v2":
		s.openAPIV2(w, r)
	case path == "/openapi/v3":
		s.openAPIV3Index(w, r)
	case strings.HasPrefix(path, "/openapi/v3/"):
		s.openAPIV3(w, r)
	case path == "/apis" || path == "/apis/":
		s.groups(w, r)
	case strings.HasPrefix(path, "/apis/"):
		s.apis(w, r, strings.Split(strings.TrimPrefix(path, "/apis/"), "/"))
	default:
		writeStatus(w, http.StatusNotFound, "the server could not find the requested resource")
	}
}

// writeJSON sends v with its length.
func writeJSON(w http.ResponseWriter, code int, contentType string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types: cannot happen
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

func writeStatus(w http.ResponseWriter, code int, message string) {
	writeJSON(w, code, "application/json", metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Message: message, Reason: reason(code), Code: int32(code),
	})
}

func reason(code int) metav1.StatusReason {
	switch code {
	case http.StatusUnauthorized:
		return metav1.StatusReasonUnauthorized
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusConflict:
		return metav1.StatusReasonAlreadyExists
	case http.StatusMethodNotAllowed:
		return metav1.StatusReasonMethodNotAllowed
	case http.StatusNotAcceptable:
		return metav1.StatusReasonNotAcceptable
	case http.StatusTooManyRequests:
		return metav1.StatusReasonTooManyRequests
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	case http.StatusInternalServerError:
		return metav1.StatusReasonInternalError
	}
	return metav1.StatusReasonUnknown
}

// answer remembers the status that was sent.
type answer struct {
	http.ResponseWriter
	status   int
	hijacked bool
}

// WriteHeader notes the first final status.
func (w *answer) WriteHeader(code int) {
	if w.status == 0 && code >= 200 {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *answer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach what is underneath.
func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush sends what was written so far.
func (w *answer) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack takes an HTTP/1.1 connection over; HTTP/2 has none to give.
func (w *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = err == nil
	return conn, rw, err
}

// pace is how long requests take when nothing is wrong: a moving average.
type pace struct{ nanos atomic.Int64 }

func (p *pace) add(d time.Duration) {
	if d > time.Second {
		return // a watch, an upgrade
	}
	// An eighth of the difference: settles within some twenty requests. A lost update does no harm.
	old := p.nanos.Load()
	p.nanos.Store(old + (int64(d)-old)/8)
}

func (p *pace) times(factor float64) time.Duration {
	return time.Duration(float64(p.nanos.Load()) * factor)
}
