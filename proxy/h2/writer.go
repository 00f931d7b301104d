package h2

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// writerBuffer is how much of a response is buffered: then most own documents leave as one HEADERS
// and one DATA frame, with a length. A response that declares its length is buffered up to
// localBuffer, because its parts need no writes of their own.
const writerBuffer = 4 << 10

// writer is the http.ResponseWriter of a local stream. It is not safe for concurrent use.
type writer struct {
	l        *local
	header   http.Header
	status   int // 0 means that WriteHeader was not called
	declared int64
	written  int64
	buf      []byte
	trailers http.Header // announced by the Trailer field
	fields   []hpack.HeaderField
	sent     bool // the head was sent
	head     bool // the request is HEAD: no content is sent
	done     bool
}

func (w *writer) Header() http.Header { return w.header }

// WriteHeader does nothing after the final head.
func (w *writer) WriteHeader(status int) {
	if w.status != 0 || w.done {
		return
	}
	if status >= 100 && status < 200 {
		if status != http.StatusSwitchingProtocols { // RFC 9113 §8.6
			w.l.begin(status, w.encode(status))
		}
		return
	}
	if status < 100 || status > 999 {
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	}
	w.status = status
	w.declared = -1
	if v := w.header.Get("Content-Length"); v != "" {
		if n, err := strconv.ParseUint(v, 10, 63); err == nil {
			w.declared = int64(n)
		} else {
			w.header.Del("Content-Length")
		}
	}
	// The head is a snapshot: later changes to the header only concern trailers.
	for _, v := range w.header["Trailer"] {
		w.trailers = announced(w.trailers, v)
	}
	w.fields = w.encode(status)
}

// encode makes a field list from the header.
func (w *writer) encode(status int) []hpack.HeaderField {
	fields := append(make([]hpack.HeaderField, 0, len(w.header)+4), hpack.HeaderField{Name: ":status", Value: strconv.Itoa(status)})
	for key, values := range w.header {
		if _, is := w.trailers[key]; is || strings.HasPrefix(key, http.TrailerPrefix) {
			continue
		}
		fields = wire.AppendField(fields, key, values)
	}
	return fields
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	w.written += int64(len(p))
	if w.declared >= 0 && w.written > w.declared {
		return 0, http.ErrContentLength
	}
	n := len(p)
	room := writerBuffer
	if w.declared > writerBuffer && w.declared <= localBuffer && !w.sent {
		room = int(w.declared)
		if w.buf == nil {
			w.buf = make([]byte, 0, w.declared)
		}
	}
	if len(w.buf)+len(p) > room && !w.head {
		if err := w.flush(p); err != nil {
			return 0, err
		}
		return n, nil
	}
	if !w.head || len(w.buf) == 0 { // of a HEAD response only the first bytes are used, for the content type
		w.buf = append(w.buf, p[:min(len(p), room)]...)
	}
	return n, nil
}

// FlushError implements http.ResponseController's method: it sends everything written so far.
func (w *writer) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return w.flush(nil)
}

// common adds the fields that all our responses have.
func (w *writer) common() {
	has := func(name string) bool {
		return slices.ContainsFunc(w.fields, func(f hpack.HeaderField) bool { return f.Name == name })
	}
	if !has("content-type") && len(w.buf) > 0 && !has("content-encoding") {
		w.fields = append(w.fields, hpack.HeaderField{Name: "content-type", Value: http.DetectContentType(w.buf)})
	}
	if !has("date") {
		w.fields = append(w.fields, hpack.HeaderField{Name: "date", Value: time.Now().UTC().Format(http.TimeFormat)})
	}
}

// flush sends the head, the buffer and p.
func (w *writer) flush(p []byte) error {
	if !w.sent {
		if len(w.buf) < 512 { // DetectContentType uses that much
			w.buf = append(w.buf, p[:min(len(p), 512)]...)
			p = p[min(len(p), 512):]
		}
		w.common()
		w.sent = true
		w.l.begin(w.status, w.fields)
	}
	if w.head {
		w.buf = w.buf[:0]
		return w.l.send(nil)
	}
	if err := w.l.send(w.buf); err != nil {
		return err
	}
	w.buf = w.buf[:0]
	return w.l.send(p)
}

// begin sends a head.
func (l *local) begin(status int, fields []hpack.HeaderField) {
	l.sh.lock()
	defer l.sh.leave(l)
	l.Head(status, fields)
}

// send passes p to the client, as fast as the client reads.
func (l *local) send(p []byte) error {
	for {
		n := min(len(p), localBuffer)
		if err := l.sendPart(p[:n]); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

func (l *local) sendPart(p []byte) error {
	l.sh.lock()
	defer l.sh.leave(l)
	for l.Queued() >= localBuffer {
		l.Changed.Wait()
	}
	if l.Gone() {
		return errStreamGone
	}
	if len(p) > 0 {
		l.Send(p)
	}
	return nil
}

// finish ends the response when the handler has returned.
func (w *writer) finish() {
	w.WriteHeader(http.StatusOK)
	w.done = true
	bodyless := w.status == http.StatusNoContent || w.status == http.StatusNotModified
	if !w.sent && w.declared < 0 && !bodyless && (w.written > 0 || !w.head) {
		w.fields = append(w.fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(w.written, 10)})
		w.declared = w.written
	}
	if !w.head && !bodyless && w.declared >= 0 && w.written != w.declared {
		w.l.abort() // shorter than declared: the client must not see it as complete
		return
	}
	var trailers []hpack.HeaderField
	for key := range w.trailers {
		trailers = wire.AppendField(trailers, key, w.header[key])
	}
	for key, values := range w.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && httpguts.ValidTrailerHeader(name) {
			trailers = wire.AppendField(trailers, name, values)
		}
	}
	if w.sent {
		if len(w.buf) > 0 && w.flush(nil) != nil {
			return
		}
	} else {
		w.common()
	}
	w.l.sh.lock()
	defer w.l.sh.leave(w.l)
	// One turn for all of it makes one write.
	if body := len(w.buf) > 0 && !w.head; !w.sent && (body || len(trailers) > 0) {
		w.l.Head(w.status, w.fields)
		if body {
			w.l.Send(w.buf)
		}
	}
	w.l.End(w.status, w.fields, trailers)
}
