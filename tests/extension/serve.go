package extension

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type sessionKey struct{}

// statusType is the type of metav1.Status.
func statusType() metav1.TypeMeta { return metav1.TypeMeta{Kind: "Status", APIVersion: "v1"} }

// exchange is one request, with what faults need to reach its connection.
type exchange struct {
	*session
	stream uint32 // on HTTP/2
}

// serve handles one request of either protocol: record, misbehave or answer, complete the record.
func (s *Server) serve(rw http.ResponseWriter, r *http.Request) {
	x := exchange{session: r.Context().Value(sessionKey{}).(*session)}
	r.TLS = &x.c.state
	if r.ProtoMajor == 2 {
		x.stream = stream(rw)
		if !x.begin(x.stream) {
			panic(http.ErrAbortHandler)
		}
		defer x.end()
	}
	rec := s.ring.add(r, x.c)
	w := &answer{ResponseWriter: rw}
	body := &bodyCount{ReadCloser: r.Body}
	r.Body = body
	defer func() { s.ring.finish(rec, r, body, w.status) }() // even if a fault panics
	if !s.misbehave(w, r, x, s.faults.of(r.Method, r.RequestURI)) {
		return
	}
	route := http.Handler(http.HandlerFunc(s.route))
	if s.cfg.Wrap != nil {
		route = s.cfg.Wrap(route)
	}
	route.ServeHTTP(w, r)
	if !w.hijacked { // unread bytes count, too; no test sends more than 8 MiB
		_, _ = io.Copy(io.Discard, io.LimitReader(body, 8<<20))
	}
}

// route finds the handler.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if c := r.Context().Value(sessionKey{}).(*session).c; !c.verified && s.cfg.RejectWith != 0 {
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
func writeJSON(w http.ResponseWriter, code int, v any) {
	b, _ := encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

// writeStatus answers with the Kubernetes library's Status for a code, and our message.
func writeStatus(w http.ResponseWriter, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, http.MethodPost, schema.GroupResource{}, "", "", 0, false)
	err.ErrStatus.Message, err.ErrStatus.Details = message, nil
	writeError(w, err)
}

// writeError answers with the error's Status, or a 400 without one.
func writeError(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewBadRequest(err.Error())
	}
	s := status.Status()
	s.TypeMeta = statusType()
	writeJSON(w, int(s.Code), s)
}

// answer records the status that was sent.
type answer struct {
	http.ResponseWriter
	status   int
	hijacked bool
}

// WriteHeader records the first final status.
func (w *answer) WriteHeader(code int) {
	if w.status == 0 && code >= 200 {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *answer) Write(p []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush sends what was written so far.
func (w *answer) Flush() {
	w.status = cmp.Or(w.status, http.StatusOK)
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack takes over an HTTP/1.1 connection; with HTTP/2 it fails.
func (w *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = err == nil
	return conn, rw, err
}

// Request is a request as it arrived. It is recorded once its head was read; Body, Trailer and
// Status are set after the answer.
type Request struct {
	// Seq counts requests, from 1.
	Seq int64
	// Time is when the head was complete.
	Time time.Time
	// Proto is HTTP/1.1 or HTTP/2.0; ServerName the SNI, empty if none.
	Proto, ServerName string
	// PeerName is the common name of the client's certificate, PeerSerial its serial number in
	// hexadecimal. Empty: no certificate.
	PeerName, PeerSerial string
	// Verified says that RequestHeaderCA has verified the peer, or is nil.
	Verified bool
	// Method, Target (:path) and Host (:authority) are as on the wire.
	Method, Target, Host string
	// Header has the names as net/http spells them. It is nil if it was longer than 64 KiB. Trailer
	// is nil if there was none.
	Header, Trailer http.Header
	// Body is the number of bytes read of the body.
	Body int64
	// Status is the answer's. 0: not answered, or not yet.
	Status int
}

// ring keeps the last requests.
type ring struct {
	size int

	mu   sync.Mutex // guards the fields below
	seq  int64
	kept []*Request // at most size; oldest first
}

// maxRecorded is how much of a head is kept: more than any honest one has.
const maxRecorded = 64 << 10

// add records a request and returns its record, which only finish may change.
func (r *ring) add(req *http.Request, c *connection) *Request {
	if r.size == 0 {
		return nil
	}
	rec := &Request{
		Time: time.Now(), Proto: req.Proto, ServerName: c.state.ServerName, Verified: c.verified,
		Method: req.Method, Target: req.RequestURI[:min(len(req.RequestURI), maxRecorded)], Host: req.Host, Header: recorded(req.Header),
	}
	if peers := c.state.PeerCertificates; len(peers) > 0 {
		rec.PeerName, rec.PeerSerial = peers[0].Subject.CommonName, peers[0].SerialNumber.Text(16)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	rec.Seq = r.seq
	if len(r.kept) == r.size {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, rec)
	return rec
}

func (r *ring) finish(rec *Request, req *http.Request, body *bodyCount, status int) {
	if rec == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.Body, rec.Status, rec.Trailer = body.n, status, recorded(req.Trailer)
}

// Requests returns the recorded requests with a Seq above since, oldest first.
func (s *Server) Requests(since int64) []Request {
	r := &s.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Request{}
	for _, rec := range r.kept {
		if rec.Seq > since {
			out = append(out, *rec)
		}
	}
	return out
}

// Forget drops all recorded requests; numbering continues.
func (s *Server) Forget() {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.ring.kept = nil
}

// recorded returns a copy of what is kept of h.
func recorded(h http.Header) http.Header {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	if n > maxRecorded {
		return nil // its absence shows it
	}
	return h.Clone()
}

// bodyCount counts what is read. It belongs to the handler's goroutine.
type bodyCount struct {
	io.ReadCloser
	n int64
}

func (b *bodyCount) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}
