package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// localBuffer is how much of a handler's response may wait for the client before the handler has to.
const localBuffer = 64 << 10

// local is a stream that is answered by an http.Handler. Its handler's goroutine ends when the handler returns; the request's context
// ends with the stream.
type local struct {
	sh      *shard
	c       *conn     // the client's
	s       *stream   // guarded by the shard's mutex; nil once the stream has ended or the response is complete
	cond    sync.Cond // on the shard's mutex: s, its queues or their ends have changed
	head    Head
	info    *ConnInfo
	handler http.Handler
	ctx     context.Context
	cancel  context.CancelFunc

	deadlines deadlines // guarded by the shard's mutex
}

// errStreamGone is what a handler gets when it reads or writes after its stream has ended.
var errStreamGone = errors.New("http2: stream closed")

func (l *local) wake() { l.cond.Broadcast() }

// serveLocal hands the stream to a handler.
func (e *engine) serveLocal(s *stream, h *Head, handler http.Handler) {
	if handler == nil {
		e.answer(s, http.StatusInternalServerError)
		return
	}
	l := &local{c: s.leg[up], s: s, head: *h, handler: handler, info: s.leg[up].info}
	l.head.Fields = slices.Clone(h.Fields)
	s.local = l
	e.after(e.serve(l))
}

// stopLocal takes the stream away from its handler.
func (e *engine) stopLocal(s *stream) {
	l := s.local
	if l == nil {
		return
	}
	s.local, l.s = nil, nil
	l.wake()
	if l.cancel != nil {
		e.after(l.cancel)
	}
}

// localHead sends a response head.
func (e *engine) localHead(s *stream, status int, fields []hpack.HeaderField) {
	if status < 200 {
		s.leg[up].writeHeaders(s.id[up], false, fields)
		return
	}
	e.localStatus(s, status)
	d := &s.half[down]
	if !d.head {
		d.head = true
		s.leg[up].writeHeaders(s.id[up], false, fields)
	}
}

func (e *engine) localStatus(s *stream, status int) {
	s.status, s.waited = int16(status), e.now
	if status == http.StatusUnauthorized {
		e.unwelcome(s.leg[up])
	}
}

// localEnd ends the response; without a head nothing was sent yet and fields is the whole of it.
func (e *engine) localEnd(l *local, status int, fields, trailers []hpack.HeaderField) {
	s := l.s
	s.local, l.s = nil, nil
	d := &s.half[down]
	if !d.head {
		e.localStatus(s, status)
		d.head, d.end, d.sentEnd = true, true, true
		s.leg[up].writeHeaders(s.id[up], true, fields)
		e.review(s)
		return
	}
	e.keepTrailers(s, down, trailers)
	e.push(s, down, nil, true)
}

// prepare makes the context. It runs without the mutex, before the handler's goroutine starts.
func (l *local) prepare() {
	ctx, cancel := context.WithCancel(l.info.Context())
	l.sh.lock()
	l.ctx, l.cancel = ctx, cancel
	gone := l.s == nil
	l.sh.settle()
	if gone {
		cancel()
	}
}

// run answers the request.
func (l *local) run() {
	defer l.cancel()
	defer l.stopDeadlines()
	w := &writer{l: l, header: http.Header{}}
	r, err := l.request()
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		w.finish()
		return
	}
	w.head = r.Method == http.MethodHead
	complete := false
	defer func() {
		// As net/http: a panic breaks the response, and only http.ErrAbortHandler is an ordinary one.
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // the value itself is the sign, as in net/http
			l.sh.log.Error("handler panicked", "panic", v, "path", l.head.Path)
		}
		if !complete {
			l.abort()
		}
	}()
	l.handler.ServeHTTP(w, r)
	w.finish()
	complete = true
}

// leave is settle for a handler's turn. It is deferred: whatever the engine does in it, the mutex is free afterwards.
func (l *local) leave() {
	if v := recover(); v != nil {
		l.sh.e.recovered(l.c, v)
	}
	l.sh.settle()
}

func (l *local) abort() {
	l.sh.lock()
	defer l.leave()
	if s := l.s; s != nil {
		l.sh.e.abort(s, ReasonAbort, nil, http2.ErrCodeInternal)
	}
}

// request makes what the handler is given.
func (l *local) request() (*http.Request, error) {
	u, err := url.ParseRequestURI(l.head.Target())
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: l.head.Method, URL: u, RequestURI: l.head.Target(), Host: l.head.Authority,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(l.head.Fields)),
		ContentLength: l.head.ContentLength, Body: http.NoBody,
	}
	if l.info.Remote != nil {
		r.RemoteAddr = l.info.Remote.String()
	}
	if l.info.TLS.HandshakeComplete {
		r.TLS = &l.info.TLS
	}
	for _, f := range l.head.Fields {
		name := http.CanonicalHeaderKey(f.Name)
		if f.Name == "cookie" && r.Header[name] != nil { // RFC 9113 §8.2.3: crumbs are joined for HTTP/1.1 eyes
			r.Header[name][0] += "; " + f.Value
			continue
		}
		if f.Name == "trailer" {
			r.Trailer = announced(r.Trailer, f.Value)
			continue
		}
		r.Header[name] = append(r.Header[name], f.Value)
	}
	if l.head.EndStream {
		r.ContentLength = 0
	} else {
		expects := strings.EqualFold(r.Header.Get("Expect"), "100-continue")
		r.Header.Del("Expect")
		r.Body = &body{l: l, r: r, expects: expects}
	}
	return r.WithContext(l.ctx), nil
}

// announced notes the trailers that a message will have; others are not shown to the handler, as by net/http.
func announced(trailer http.Header, names string) http.Header {
	for name := range strings.SplitSeq(names, ",") {
		name = http.CanonicalHeaderKey(strings.TrimSpace(name))
		if name == "" || !httpguts.ValidTrailerHeader(name) {
			continue
		}
		if trailer == nil {
			trailer = http.Header{}
		}
		trailer[name] = nil
	}
	return trailer
}

// body is the request's body as the handler reads it.
type body struct {
	l       *local
	r       *http.Request
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
	defer l.leave()
	if b.expects && l.s != nil && l.s.half[up].got == 0 && !l.s.half[down].head {
		l.sh.e.localHead(l.s, http.StatusContinue, []hpack.HeaderField{{Name: ":status", Value: "100"}})
		l.sh.settle()
		l.sh.lock()
	}
	b.expects = false
	for l.s != nil && l.s.half[up].q.size == 0 && !l.s.half[up].end && !l.deadlines.late[up] && !b.closed {
		l.cond.Wait()
	}
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	s := l.s
	if s == nil || s.half[up].q.size == 0 && !s.half[up].end {
		return 0, l.gone(up)
	}
	u := &s.half[up]
	n := 0
	for n < len(p) && u.q.size > 0 {
		k := copy(p[n:], u.q.peek())
		u.q.read(l.sh.e, k)
		n += k
	}
	l.sh.e.weigh(s)
	u.sent += int64(n)
	l.sh.e.giveStreamCredit(s, up, n)
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	b.eof = true
	for _, f := range u.trailers {
		if name := http.CanonicalHeaderKey(f.Name); b.r.Trailer != nil {
			if _, announced := b.r.Trailer[name]; announced {
				b.r.Trailer[name] = append(b.r.Trailer[name], f.Value)
			}
		}
	}
	return 0, io.EOF
}

// Close ends a Read that is under way: who reads may be another goroutine.
func (b *body) Close() error {
	b.l.sh.lock()
	defer b.l.leave()
	b.closed = true
	b.l.wake()
	return nil
}
