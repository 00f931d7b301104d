package extension

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// The receive window of a stream, which limits an unread body: HTTP/2's default. With 250
	// streams, a connection holds 16 MiB at most.
	h2Window = 64<<10 - 1
	// Queued control frames. A peer that causes more of them and does not read is flooding.
	h2Backlog = 1024
	// Longer than the pauses of a client that still reads, shorter than a test.
	h2WriteTimeout = 30 * time.Second
)

// h2conn is one HTTP/2 connection. One goroutine reads frames, one writes the answers to control
// frames, so that reading never waits for writing, and each request has one.
type h2conn struct {
	srv  *Server
	conn *connection
	nc   *tls.Conn
	ctx  context.Context
	fr   *http2.Framer // the reading goroutine reads from it; writes are guarded by wmu

	wmu   sync.Mutex // guards bw, fr's writes, enc, block: the frames of one message must not be interleaved
	bw    *bufio.Writer
	enc   *hpack.Encoder
	block bytes.Buffer

	control chan func() error // writes for the control goroutine; never closed

	mu       sync.Mutex // guards the fields below
	cond     *sync.Cond // signals a change of window, a stream's window or gone
	streams  map[uint32]*h2stream
	window   int64 // the connection's send window
	initial  int64 // the send window of a new stream
	maxFrame int
	last     uint32 // the highest stream that the peer has opened
	goneAt   uint32 // streams above it are ignored
	opening  bool   // the reading goroutine is about to add to streams
	leaving  bool   // GOAWAY was sent: close when streams is empty
	gone     bool
}

var errH2Gone = errors.New("connection ended")

// serveH2 runs a connection until it ends.
func (s *Server) serveH2(c *connection, nc *tls.Conn) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	h := &h2conn{
		srv: s, conn: c, nc: nc, ctx: ctx, bw: bufio.NewWriterSize(nc, 32<<10), control: make(chan func() error, h2Backlog),
		streams: map[uint32]*h2stream{}, window: 64<<10 - 1, initial: 64<<10 - 1, maxFrame: 16 << 10,
	}
	h.cond = sync.NewCond(&h.mu)
	h.enc = hpack.NewEncoder(&h.block)
	r := bufio.NewReaderSize(nc, 32<<10)
	h.fr = http2.NewFramer(h.bw, r)
	h.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.fr.MaxHeaderListSize = maxHeaderBytes
	h.fr.AllowIllegalWrites = true // faults write illegal frames
	h.fr.SetReuseFrames()
	s.wg.Go(h.writeControl)
	h.run(r)
	h.end()
	c.Close()
}

// run reads the preface and then frames until the connection ends.
func (h *h2conn) run(r *bufio.Reader) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(r, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	err := h.write(func() error {
		return h.fr.WriteSettings(
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: h.srv.cfg.MaxStreams},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderBytes},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: h2Window},
		)
	})
	for err == nil {
		var f http2.Frame
		f, err = h.fr.ReadFrame()
		var se http2.StreamError
		switch {
		case err == nil:
			err = h.frame(f)
		case errors.As(err, &se):
			err = h.later(func() error { return h.fr.WriteRSTStream(se.StreamID, se.Code) })
			h.drop(se.StreamID, se)
		}
	}
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		_ = h.write(func() error { return h.fr.WriteGoAway(h.last, http2.ErrCode(ce), nil) })
	}
}

// write runs f, which writes whole messages, and flushes.
func (h *h2conn) write(f func() error) error {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	_ = h.nc.SetWriteDeadline(time.Now().Add(h2WriteTimeout))
	if err := f(); err != nil {
		return err
	}
	return h.bw.Flush()
}

// later queues f for the control goroutine.
func (h *h2conn) later(f func() error) error {
	select {
	case h.control <- f:
		return nil
	default:
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
}

func (h *h2conn) writeControl() {
	for {
		select {
		case f := <-h.control:
			if h.write(f) != nil {
				h.conn.Close()
				return
			}
		case <-h.ctx.Done():
			return
		}
	}
}

// frame handles one frame. An error ends the connection.
func (h *h2conn) frame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return h.headers(f)
	case *http2.DataFrame:
		return h.data(f)
	case *http2.SettingsFrame:
		return h.settings(f)
	case *http2.WindowUpdateFrame:
		return h.windowUpdate(f.StreamID, int64(f.Increment))
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		data := f.Data
		return h.later(func() error { return h.fr.WritePing(true, data) })
	case *http2.RSTStreamFrame:
		h.drop(f.StreamID, http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode})
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // PRIORITY, GOAWAY and unknown frames need no answer
}

func (h *h2conn) headers(f *http2.MetaHeadersFrame) error {
	h.mu.Lock()
	st, open := h.streams[f.StreamID], len(h.streams)
	known := f.StreamID <= h.last
	if !known {
		h.last = f.StreamID
	}
	ignored := h.leaving && f.StreamID > h.goneAt
	h.opening = st == nil && !known && !ignored
	h.mu.Unlock()
	switch {
	case st != nil:
		if !f.StreamEnded() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		st.body.end(trailer(f), io.EOF)
		return nil
	case known && f.StreamID%2 == 1 || ignored:
		return nil // trailers of a closed stream may still arrive
	case f.StreamID%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case uint32(open) >= h.srv.cfg.MaxStreams:
		id := f.StreamID
		return h.later(func() error { return h.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
	}
	h.openStream(f)
	return nil
}

func (h *h2conn) data(f *http2.DataFrame) error {
	h.mu.Lock()
	st := h.streams[f.StreamID]
	h.mu.Unlock()
	// The connection's window is replenished at once: only the streams' windows limit a sender.
	if n := f.Header().Length; n > 0 {
		if err := h.later(func() error { return h.fr.WriteWindowUpdate(0, n) }); err != nil {
			return err
		}
	}
	if st == nil {
		return nil
	}
	if !st.body.put(f.Data()) {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if pad := int(f.Header().Length) - len(f.Data()); pad > 0 {
		st.body.giveBack(pad)
	}
	if f.StreamEnded() {
		st.body.end(nil, io.EOF)
	}
	return nil
}

func (h *h2conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	var table uint32 = 4096
	h.mu.Lock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		switch s.ID {
		case http2.SettingInitialWindowSize:
			for _, st := range h.streams {
				st.window += int64(s.Val) - h.initial
			}
			h.initial = int64(s.Val)
		case http2.SettingMaxFrameSize:
			h.maxFrame = min(int(s.Val), 64<<10)
		case http2.SettingHeaderTableSize:
			table = s.Val
		}
		return s.Valid()
	})
	h.cond.Broadcast()
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.later(func() error {
		h.enc.SetMaxDynamicTableSizeLimit(min(table, 4096))
		return h.fr.WriteSettingsAck()
	})
}

func (h *h2conn) windowUpdate(stream uint32, n int64) error {
	const most = 1<<31 - 1
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.cond.Broadcast()
	if stream == 0 {
		h.window += n
		if h.window > most {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	} else if st := h.streams[stream]; st != nil {
		st.window += n
	}
	return nil
}

// drop ends a stream that either side has reset.
func (h *h2conn) drop(id uint32, cause error) {
	h.mu.Lock()
	st := h.streams[id]
	if st != nil {
		delete(h.streams, id)
		st.dead = cause
	}
	h.cond.Broadcast()
	empty := h.leaving && len(h.streams) == 0 && !h.opening
	h.mu.Unlock()
	if st != nil {
		st.body.end(nil, cause)
		st.cancel()
	}
	if empty {
		h.closeGently()
	}
}

// disown announces that stream id is not processed, and none after it; the connection ends after
// the others. If a later stream has already arrived, it does nothing and returns false: that one is
// being answered, and a client that was told otherwise would send it again.
func (h *h2conn) disown(id uint32) bool {
	last := max(id, 2) - 2
	h.mu.Lock()
	latest := h.last == id
	if latest {
		h.leaving, h.goneAt = true, last
	}
	h.mu.Unlock()
	if latest {
		_ = h.write(func() error { return h.fr.WriteGoAway(last, http2.ErrCodeNo, nil) })
	}
	return latest
}

// leave announces that no new streams are accepted; those that have arrived are answered. A second
// call sends the same: the last stream must never be raised (RFC 9113 §6.8), and the first of
// several concurrent calls must not disown the other requests.
func (h *h2conn) leave() {
	h.mu.Lock()
	if !h.leaving {
		h.leaving, h.goneAt = true, h.last
	}
	last := h.goneAt
	h.mu.Unlock()
	_ = h.write(func() error { return h.fr.WriteGoAway(last, http2.ErrCodeNo, nil) })
}

// closeGently ends the connection, but lets the peer read first what was sent.
func (h *h2conn) closeGently() {
	_ = h.nc.CloseWrite()
	// The peer has a second to close its side.
	h.srv.wg.Go(func() {
		select {
		case <-time.After(time.Second):
		case <-h.ctx.Done():
		}
		h.conn.Close()
	})
}

// end ends every stream, because the connection is gone.
func (h *h2conn) end() {
	h.mu.Lock()
	h.gone = true
	all := h.streams
	h.streams = map[uint32]*h2stream{}
	for _, st := range all {
		st.dead = errH2Gone
	}
	h.cond.Broadcast()
	h.mu.Unlock()
	for _, st := range all {
		st.body.end(nil, errH2Gone)
		st.cancel()
	}
}

func trailer(f *http2.MetaHeadersFrame) http.Header {
	t := http.Header{}
	for _, hf := range f.RegularFields() {
		t.Add(hf.Name, hf.Value)
	}
	return t
}
