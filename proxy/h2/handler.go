package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

const localBuffer = 64 << 10 // how much of a handler's response may wait before the handler blocks

// local is a running handler, whose goroutine ends with it. The request's context ends with the stream, and its cause
// is a Failure.
type local struct {
	engine.Local // guarded by the shard's mutex
	sh           *shard
	head         wire.Head
	info         *ConnInfo
	handler      http.Handler

	// The following fields are guarded by the shard's mutex.
	readBy time.Time   // the deadline of reading; zero means none
	late   *time.Timer // fires then; nil means that it was never set
}

// errStreamGone is a handler's error when it reads or writes after its stream has ended.
var errStreamGone = errors.New("http2: stream closed")

// local prepares a handler for the engine, see engine.Config.Serve.
func (sh *shard) local(c *engine.Conn, h *wire.Head, handler http.Handler) (*engine.Local, func()) {
	l := &local{sh: sh, head: *h, info: linkOf(c).info, handler: handler}
	l.head.Fields = slices.Clone(h.Fields)
	l.Changed.L = &sh.mu
	return &l.Local, func() { sh.links.Go(l.run) }
}

func (l *local) run() {
	ctx, cancel := context.WithCancelCause(l.info.Context)
	defer cancel(nil)
	l.sh.lock()
	if l.Cancel = cancel; l.Gone() {
		cancel(nil)
	}
	l.sh.settle()
	w := &writer{l: l, header: http.Header{}}
	defer func() { _ = w.SetReadDeadline(time.Time{}) }() // which stops its timer
	r, err := l.request(ctx)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		w.finish()
		return
	}
	w.head = r.Method == http.MethodHead
	complete := false
	defer func() {
		// As in net/http, a panic aborts the response, and http.ErrAbortHandler is not logged.
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // itself, as in net/http
			l.sh.cfg.Logger.Error("handler panicked", "panic", fmt.Sprint(v),
				"path", l.head.Path, "stack", string(debug.Stack()))
		}
		if !complete {
			l.abort()
		}
	}()
	l.handler.ServeHTTP(w, r)
	w.finish()
	complete = true
}

func (l *local) abort() { l.sh.turn(l, func() { l.Abort(nil) }) }

func (l *local) request(ctx context.Context) (*http.Request, error) {
	// The target is valid, and url.ParseRequestURI would read it four times more.
	path, err := url.PathUnescape(l.head.Path)
	if err != nil {
		return nil, err //nolint:wrapcheck // says which escape
	}
	u := &url.URL{Path: path, RawPath: l.head.Path, RawQuery: l.head.RawQuery}
	u.ForceQuery = u.RawQuery == "" && len(l.head.Target()) > len(u.RawPath)
	r := &http.Request{
		Method: l.head.Method, URL: u, RequestURI: l.head.Target(), Host: l.head.Authority,
		Proto: "HTTP/2.0", ProtoMajor: 2, ContentLength: l.head.ContentLength, Body: http.NoBody,
		RemoteAddr: l.info.Remote.String(), TLS: &l.info.TLS,
	}
	r.Header, _ = headerOf(l.head.Fields)
	if lines := r.Header["Cookie"]; len(lines) > 1 { // RFC 9113 §8.2.3: joined as in HTTP/1.1
		r.Header["Cookie"] = []string{strings.Join(lines, "; ")}
	}
	if l.head.EndStream {
		r.ContentLength = 0
	} else {
		r.Body = &body{l: l, expects: r.ContentLength != 0 && strings.EqualFold(r.Header.Get("Expect"), "100-continue")}
	}
	return r.WithContext(ctx), nil
}

// headerOf returns fields as net/http has them: the announced trailers apart.
func headerOf(fields []hpack.HeaderField) (header, trailer http.Header) {
	header = make(http.Header, len(fields))
	values := make([]string, len(fields))
	for i := range fields {
		key := http.CanonicalHeaderKey(fields[i].Name)
		if known := header[key]; known != nil {
			header[key] = append(known, fields[i].Value)
			continue
		}
		values[i] = fields[i].Value
		header[key] = values[i : i+1 : i+1]
	}
	trailer = announced(header["Trailer"])
	delete(header, "Trailer")
	return header, trailer
}

// announced returns the trailers that a message's Trailer fields announce; as in net/http, handlers see no others.
func announced(fields []string) (trailer http.Header) {
	const maxAnnounced = 32 // limits the trailers that a message announces: more than any known one does
	for _, names := range fields {
		for name := range strings.SplitSeq(names, ",") {
			if len(trailer) == maxAnnounced {
				return trailer
			}
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if name == "" || !httpguts.ValidTrailerHeader(name) {
				continue
			}
			if trailer == nil {
				trailer = http.Header{}
			}
			trailer[name] = nil
		}
	}
	return trailer
}

type body struct {
	l       *local
	expects bool // the client waits for 100 Continue
	closed  bool // guarded by the shard's mutex
	eof     bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.eof {
		return 0, io.EOF
	}
	l := b.l
	l.sh.lock()
	defer l.sh.leave(l)
	if b.expects && l.Continue() {
		l.sh.settle()
		l.sh.lock()
	}
	b.expects = false
	for l.Waits() && !b.closed && (l.readBy.IsZero() || time.Now().Before(l.readBy)) {
		l.Changed.Wait()
	}
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case l.Gone():
		return 0, errStreamGone
	case l.Waits():
		return 0, fmt.Errorf("http2: %w", os.ErrDeadlineExceeded)
	}
	if n := l.Read(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	b.eof = true
	return 0, io.EOF
}

// Close ends a Read in progress, which may be on another goroutine.
func (b *body) Close() error {
	b.l.sh.turn(b.l, func() { b.closed = true; b.l.Changed.Broadcast() })
	return nil
}

// SetReadDeadline implements http.ResponseController's method. The rest of the body cannot be read after it.
func (w *writer) SetReadDeadline(t time.Time) error {
	l := w.l
	l.sh.lock()
	defer l.sh.leave(l)
	if l.late != nil {
		l.late.Stop()
	}
	if l.readBy = t; !t.IsZero() {
		l.late = time.AfterFunc(time.Until(t), func() { l.sh.turn(l, func() { l.Changed.Broadcast() }) })
	}
	return nil
}

// SetWriteDeadline implements http.ResponseController's method. As in net/http, the stream is reset at the next tick.
func (w *writer) SetWriteDeadline(t time.Time) error {
	at := max(t.Sub(w.l.sh.started), 1)
	if t.IsZero() {
		at = 0
	}
	w.l.sh.turn(w.l, func() { w.l.Expire(at) })
	return nil
}

// writerBuffer is how much of a response is buffered: then most own documents leave as one HEADERS and one DATA frame,
// with a length. One that declares its length is buffered up to localBuffer: its parts need no writes of their own.
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
}

func (w *writer) Header() http.Header { return w.header }

// WriteHeader does nothing after the final head.
func (w *writer) WriteHeader(status int) {
	if w.status != 0 {
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
	w.trailers = announced(w.header["Trailer"])
	w.fields = w.encode(status)
}

func (w *writer) encode(status int) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, len(w.header)+4)
	fields = append(fields, hpack.HeaderField{Name: ":status", Value: strconv.Itoa(status)})
	for key, values := range w.header {
		if key == "Content-Length" && (status < 200 || status == http.StatusNoContent) {
			continue // as in wire.FieldSection.Response
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
		return len(p), nil
	}
	if !w.head || len(w.buf) == 0 { // of a HEAD response only the first bytes are used, for the content type
		w.buf = append(w.buf, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

// FlushError implements http.ResponseController's method: it sends everything written so far.
func (w *writer) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return w.flush(nil)
}

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

func (l *local) begin(status int, fields []hpack.HeaderField) {
	l.sh.turn(l, func() { l.Head(status, fields) })
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
