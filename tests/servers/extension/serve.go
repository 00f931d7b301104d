package extension

import (
	"errors"
	"io"
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
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	x := exchange{session: r.Context().Value(sessionKey{}).(*session)}
	r.TLS = &x.c.state
	if r.ProtoMajor == 2 {
		x.stream = stream(w)
		if !x.begin(x.stream) {
			panic(http.ErrAbortHandler)
		}
		defer x.end()
	}
	rec := s.ring.add(r, x.c)
	defer func() { s.ring.finish(rec, r.Trailer) }() // even if a fault panics
	if !s.misbehave(w, r, x, s.faults.of(r.Method, r.RequestURI)) {
		return
	}
	route := http.Handler(http.HandlerFunc(s.route))
	if s.cfg.Wrap != nil {
		route = s.cfg.Wrap(route)
	}
	route.ServeHTTP(w, r)
}

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

// Request is a request as it arrived. It is recorded once its head was read; Trailer is set after the answer.
type Request struct {
	Time time.Time // when the head was complete
	// PeerName is the common name of the client's certificate, PeerSerial its serial number in
	// hexadecimal. Empty: no certificate.
	PeerName, PeerSerial string
	Verified             bool   // says that RequestHeaderCA has verified the peer, or is nil
	Method, Target       string // Method and Target (:path) are as on the wire
	// Header has the names as net/http spells them. It is nil if it was longer than 64 KiB. Trailer
	// is nil if there was none.
	Header, Trailer http.Header
}

// ring keeps the last requests.
type ring struct {
	size int

	mu   sync.Mutex // guards kept
	kept []*Request // at most size; oldest first
}

const maxRecorded = 64 << 10 // how much of a head is kept: more than any honest one has

// add records a request and returns its record, which only finish may change.
func (r *ring) add(req *http.Request, c *connection) *Request {
	if r.size == 0 {
		return nil
	}
	rec := &Request{
		Time: time.Now(), Verified: c.verified, Method: req.Method, Target: req.RequestURI[:min(len(req.RequestURI), maxRecorded)], Header: recorded(req.Header),
	}
	if peers := c.state.PeerCertificates; len(peers) > 0 {
		rec.PeerName, rec.PeerSerial = peers[0].Subject.CommonName, peers[0].SerialNumber.Text(16)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == r.size {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, rec)
	return rec
}

func (r *ring) finish(rec *Request, trailer http.Header) {
	if rec == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.Trailer = recorded(trailer)
}

// Requests returns the recorded requests, oldest first.
func (s *Server) Requests() []Request {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	out := []Request{}
	for _, rec := range s.ring.kept {
		out = append(out, *rec)
	}
	return out
}

// Forget drops all recorded requests.
func (s *Server) Forget() {
	s.ring.mu.Lock()
	defer s.ring.mu.Unlock()
	s.ring.kept = nil
}

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
