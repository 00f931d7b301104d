package extension

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

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
