package extension

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2stream is one request and, as an http.ResponseWriter, its response.
type h2stream struct {
	h      *h2conn
	id     uint32
	cancel context.CancelFunc // cancels the request's context
	body   pipe

	window int64 // the stream's send window; guarded by h.mu
	dead   error // why nothing more may be sent, or nil; guarded by h.mu

	// The fields below belong to the handler's goroutine.
	header http.Header
	status int
	isHead bool
	sent   bool // the response's HEADERS
	buf    []byte
}

// bufSize is how much is buffered before it is sent: an object of 1 KB and its headers leave in one
// write.
const bufSize = 16 << 10

func (h *h2conn) openStream(f *http2.MetaHeadersFrame) {
	ctx, cancel := context.WithCancel(h.ctx)
	st := &h2stream{h: h, id: f.StreamID, cancel: cancel, header: http.Header{}}
	st.body.init(h, f.StreamID)
	if f.StreamEnded() {
		st.body.end(nil, io.EOF)
	}
	r, x := st.request(ctx, f)
	h.mu.Lock()
	st.window = h.initial
	h.streams[st.id] = st
	h.opening = false
	h.mu.Unlock()
	tooLong := f.Truncated
	h.srv.wg.Go(func() {
		defer cancel()
		st.run(r, x, tooLong)
	})
}

func (st *h2stream) run(r *http.Request, x *exchange, tooLong bool) {
	aborted := true
	defer func() {
		if aborted {
			if p := recover(); p != nil {
				if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
					panic(p)
				}
			}
			st.reset(http2.ErrCodeInternal)
			return
		}
		st.finish()
	}()
	switch {
	case tooLong:
		writeStatus(st, http.StatusRequestHeaderFieldsTooLarge, "the request head is too long")
	case r.URL == nil:
		writeStatus(st, http.StatusBadRequest, "the request target cannot be read")
	default:
		st.h.srv.serve(st, r, x)
	}
	aborted = false
}

// request converts a header block to an http.Request as net/http does.
func (st *h2stream) request(ctx context.Context, f *http2.MetaHeadersFrame) (*http.Request, *exchange) {
	x := &exchange{conn: st.h.conn, stream: st}
	header := http.Header{}
	for _, hf := range f.RegularFields() {
		x.fields = append(x.fields, Field{hf.Name, hf.Value})
		header.Add(hf.Name, hf.Value)
	}
	r := &http.Request{
		Method: f.PseudoValue("method"), RequestURI: f.PseudoValue("path"), Host: f.PseudoValue("authority"),
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Body: &h2body{st: st}, ContentLength: -1,
		TLS: &st.h.conn.state,
	}
	if f.StreamEnded() {
		r.ContentLength = 0
	} else if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		r.ContentLength = n
	}
	r.URL, _ = url.ParseRequestURI(r.RequestURI) // nil gets a 400
	r = r.WithContext(ctx)
	r.Body.(*h2body).r = r
	st.isHead = r.Method == http.MethodHead
	return r, x
}

// Header returns what WriteHeader will send.
func (st *h2stream) Header() http.Header { return st.header }

// WriteHeader sends an informational response, or keeps the final status until the first write or
// flush.
func (st *h2stream) WriteHeader(code int) {
	if code < 200 {
		_ = st.writeHead(code, false)
		return
	}
	if st.status == 0 {
		st.status = code
	}
}

// Write buffers, or sends.
func (st *h2stream) Write(p []byte) (int, error) {
	if st.status == 0 {
		st.status = http.StatusOK
	}
	if st.isHead || st.status == http.StatusNoContent || st.status == http.StatusNotModified {
		return len(p), nil
	}
	if len(st.buf)+len(p) <= bufSize {
		st.buf = append(st.buf, p...)
		return len(p), nil
	}
	if err := st.flush(); err != nil {
		return 0, err
	}
	return len(p), st.writeData(p, false)
}

// Flush sends the buffer.
func (st *h2stream) Flush() { _ = st.flush() }

func (st *h2stream) flush() error {
	if !st.sent {
		if st.status == 0 {
			st.status = http.StatusOK
		}
		st.sent = true
		if err := st.writeHead(st.status, false); err != nil {
			return err
		}
	}
	if len(st.buf) == 0 {
		return nil
	}
	p := st.buf
	st.buf = st.buf[:0]
	return st.writeData(p, false)
}

// finish ends the response and the stream.
func (st *h2stream) finish() {
	if st.status == 0 {
		st.status = http.StatusOK
	}
	trailers := st.trailers()
	err := st.alive()
	if err == nil && !st.sent {
		st.sent = true
		if st.header.Get("Content-Length") == "" && !st.isHead && len(st.buf) > 0 && len(trailers) == 0 {
			st.header.Set("Content-Length", strconv.Itoa(len(st.buf)))
		}
		err = st.writeHead(st.status, len(st.buf) == 0 && len(trailers) == 0)
		if len(st.buf) == 0 && len(trailers) == 0 {
			st.done(err)
			return
		}
	}
	if err == nil && (len(st.buf) > 0 || len(trailers) == 0) {
		err = st.writeData(st.buf, len(trailers) == 0)
	}
	if err == nil && len(trailers) > 0 {
		err = st.h.write(func() error { return st.h.writeBlock(st.id, trailers, true) })
	}
	st.done(err)
}

// done forgets the stream; if a body is still arriving, the client is told to stop (RFC 9113, 8.1).
func (st *h2stream) done(err error) {
	if err == nil && !st.body.ended() {
		_ = st.h.write(func() error { return st.h.fr.WriteRSTStream(st.id, http2.ErrCodeNo) })
	}
	st.h.drop(st.id, errH2Gone)
}

// reset ends the stream with RST_STREAM.
func (st *h2stream) reset(code http2.ErrCode) {
	if st.alive() == nil {
		_ = st.h.write(func() error { return st.h.fr.WriteRSTStream(st.id, code) })
	}
	st.h.drop(st.id, http2.StreamError{StreamID: st.id, Code: code})
}

func (st *h2stream) alive() error {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.dead
}

func (st *h2stream) writeHead(code int, end bool) error {
	if err := st.alive(); err != nil {
		return err
	}
	fields := []hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(code)}}
	if code >= 200 && st.header.Get("Date") == "" {
		st.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	for name, values := range st.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || connectionHeader(name) {
			continue
		}
		for _, v := range values {
			fields = append(fields, hpack.HeaderField{Name: strings.ToLower(name), Value: v})
		}
	}
	return st.h.write(func() error { return st.h.writeBlock(st.id, fields, end) })
}

func connectionHeader(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

func (st *h2stream) trailers() []hpack.HeaderField {
	var out []hpack.HeaderField
	for name, values := range st.header {
		if key, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			for _, v := range values {
				out = append(out, hpack.HeaderField{Name: strings.ToLower(key), Value: v})
			}
		}
	}
	return out
}

// writeBlock writes a header block; wmu is held.
func (h *h2conn) writeBlock(id uint32, fields []hpack.HeaderField, end bool) error {
	h.block.Reset()
	for _, f := range fields {
		if err := h.enc.WriteField(f); err != nil {
			return err
		}
	}
	b := h.block.Bytes()
	first := b[:min(len(b), 16<<10)]
	rest := b[len(first):]
	err := h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(rest) == 0})
	for err == nil && len(rest) > 0 {
		part := rest[:min(len(rest), 16<<10)]
		rest = rest[len(part):]
		err = h.fr.WriteContinuation(id, len(rest) == 0, part)
	}
	return err
}

// writeData sends p within the peer's windows.
func (st *h2stream) writeData(p []byte, end bool) error {
	for {
		n, err := st.reserve(len(p))
		if err != nil {
			return err
		}
		part := p[:n]
		p = p[n:]
		last := len(p) == 0
		if err := st.h.write(func() error { return st.h.fr.WriteData(st.id, end && last, part) }); err != nil {
			return err
		}
		if last {
			return nil
		}
	}
}

// reserve takes up to want bytes from both windows; it waits for at least one.
func (st *h2stream) reserve(want int) (int, error) {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for st.dead == nil && want > 0 && (h.window <= 0 || st.window <= 0) {
		h.cond.Wait()
	}
	if st.dead != nil {
		return 0, st.dead
	}
	n := int(min(int64(want), int64(h.maxFrame), max(h.window, 0), max(st.window, 0)))
	h.window -= int64(n)
	st.window -= int64(n)
	return n, nil
}

// pipe passes a request body from the reading goroutine to the handler, with h2Window bytes at
// most.
type pipe struct {
	h  *h2conn
	id uint32

	mu      sync.Mutex // guards the fields below
	cond    *sync.Cond
	buf     bytes.Buffer
	err     error       // Read's error when buf is empty; nil while more may arrive
	trailer http.Header // set with err
}

func (p *pipe) init(h *h2conn, id uint32) {
	p.h, p.id, p.cond = h, id, sync.NewCond(&p.mu)
}

// put adds data; it returns false if the peer has exceeded its window.
func (p *pipe) put(data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return true // the handler does not read any longer
	}
	if p.buf.Len()+len(data) > h2Window {
		return false
	}
	p.buf.Write(data)
	p.cond.Broadcast()
	return true
}

func (p *pipe) end(trailer http.Header, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err, p.trailer = err, trailer
	}
	p.cond.Broadcast()
}

func (p *pipe) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil
}

func (p *pipe) read(b []byte) (int, http.Header, error) {
	p.mu.Lock()
	for p.buf.Len() == 0 && p.err == nil {
		p.cond.Wait()
	}
	if p.buf.Len() == 0 {
		defer p.mu.Unlock()
		return 0, p.trailer, p.err
	}
	n, _ := p.buf.Read(b)
	p.mu.Unlock()
	p.giveBack(n)
	return n, nil, nil
}

// giveBack allows the peer another n bytes.
func (p *pipe) giveBack(n int) {
	if n > 0 && !p.ended() {
		_ = p.h.later(func() error { return p.h.fr.WriteWindowUpdate(p.id, uint32(n)) })
	}
}

// h2body is a request's Body.
type h2body struct {
	st *h2stream
	r  *http.Request
}

func (b *h2body) Read(p []byte) (int, error) {
	n, trailer, err := b.st.body.read(p)
	if errors.Is(err, io.EOF) && trailer != nil {
		b.r.Trailer = trailer
	}
	return n, err
}

func (b *h2body) Close() error { return nil }
