package extension

import (
	"bytes"
	"context"
	"math"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// session is a connection above TLS, of either protocol. On HTTP/2, faults write frames of their
// own between those of net/http, which cannot misbehave.
type session struct {
	net.Conn
	c *connection

	mu    sync.Mutex                 // guards the fields below, and writes
	out   []byte                     // the beginning of a message that net/http has not written completely
	wrote map[uint32]http2.FrameType // :: stream with a fault → the last frame on it; 0 → SETTINGS
	wakes *sync.Cond                 // signals a change of wrote, and the end of a request that waits

	latest  uint32 // the highest stream that a handler has begun
	goneAt  uint32 // streams above it are ignored
	serving int    // requests of other streams
}

func newSession(conn net.Conn, c *connection) *session {
	h := &session{Conn: conn, c: c, wrote: map[uint32]http2.FrameType{0: none}, goneAt: math.MaxUint32}
	h.wakes = sync.NewCond(&h.mu)
	return h
}

const none = http2.FrameType(255)

// Write sends only whole messages, so that a frame can be written after it: frames, and HEADERS
// with their CONTINUATIONs. On HTTP/1.1 it sends everything.
func (h *session) Write(p []byte) (int, error) {
	if h.c.state.NegotiatedProtocol != "h2" {
		return h.Conn.Write(p)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out = append(h.out, p...)
	whole := 0
	for at := 0; ; {
		f, err := http2.ReadFrameHeader(bytes.NewReader(h.out[at:]))
		at += 9 + int(f.Length)
		if err != nil || at > len(h.out) {
			break
		}
		if _, faulty := h.wrote[f.StreamID]; faulty && (f.StreamID > 0 || f.Type == http2.FrameSettings) {
			h.wrote[f.StreamID] = f.Type
		}
		if block := f.Type == http2.FrameHeaders || f.Type == http2.FrameContinuation; !block || f.Flags.Has(http2.FlagHeadersEndHeaders) {
			whole = at
		}
	}
	if _, err := h.Conn.Write(h.out[:whole]); err != nil {
		return 0, err
	}
	h.out = h.out[:copy(h.out, h.out[whole:])]
	h.wakes.Broadcast()
	return len(p), nil
}

// inject writes frames that net/http would not, after a frame of net/http's: it has buffers.
func (h *session) inject(r *http.Request, stream uint32, after http2.FrameType, write func(*http2.Framer) error) {
	defer context.AfterFunc(r.Context(), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.wakes.Broadcast()
	})()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.wrote[stream] != after {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		h.wakes.Wait()
	}
	fr := http2.NewFramer(h.Conn, nil)
	fr.AllowIllegalWrites = true
	_ = write(fr) // the client may have given up
}

// faulty makes inject able to wait for frames of a stream.
func (h *session) faulty(stream uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrote[stream] = none
}

// stream returns the number of a response's stream. net/http does not tell it.
func stream(w http.ResponseWriter) uint32 {
	id := reflect.ValueOf(w).Elem().FieldByName("rws").Elem().FieldByName("stream").Elem().FieldByName("id")
	return uint32(id.Uint())
}

// begin reports whether a request is processed: it is not if disown has announced so.
func (h *session) begin(id uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id > h.goneAt {
		return false
	}
	h.latest = max(h.latest, id)
	h.serving++
	return true
}

// end ends the connection after the last request that is processed, if there was a disown. The peer
// has a second to read first what was sent.
func (h *session) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serving--; h.serving == 0 && h.goneAt < math.MaxUint32 {
		time.AfterFunc(time.Second, func() { h.c.Close() })
	}
}

// disown announces that stream id is not processed, and none after it. If a later stream has already begun, it does
// nothing and returns false: that one is being answered, and a client that was told otherwise would send it again.
func (h *session) disown(r *http.Request, id uint32) bool {
	h.mu.Lock()
	latest := h.latest == id
	if latest {
		h.goneAt = max(id, 2) - 2
	}
	h.mu.Unlock()
	if latest {
		h.inject(r, 0, http2.FrameSettings, func(fr *http2.Framer) error { return fr.WriteGoAway(max(id, 2)-2, http2.ErrCodeNo, nil) })
	}
	return latest
}

// endless writes an unfinished head. No other frame may be sent within it, so the connection is blocked meanwhile.
// Every field is a never-indexed literal, which leaves the tables of both sides unchanged.
func endless(fr *http2.Framer, stream uint32, size int64) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	field := func(name, value string) {
		_ = enc.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	field(":status", "200")
	err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes()})
	for n := int64(0); err == nil && n < size; n += int64(block.Len()) {
		block.Reset()
		field("x-endless-"+strconv.FormatInt(n, 10), string(filler(8<<10)))
		err = fr.WriteContinuation(stream, false, block.Bytes())
	}
	return err
}

// WriteTrailers ends an answer over HTTP/2 with trailers. For each, net/http looks at all before,
// which takes seconds for as many as a head has room for. It does not return.
func WriteTrailers(w http.ResponseWriter, r *http.Request, fields []hpack.HeaderField) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = enc.WriteField(f)
	}
	inject, end := Below(w, r)
	flush(w)
	inject(true, false, func(fr *http2.Framer, stream uint32) {
		const size = 16 << 10 // the least that peers take
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndStream: true, EndHeaders: block.Len() <= size, BlockFragment: block.Next(size)})
		for err == nil && block.Len() > 0 {
			err = fr.WriteContinuation(stream, block.Len() <= size, block.Next(size))
		}
	})
	end(true) // else net/http ends the stream again
}
