package extension

import (
	"bytes"
	"cmp"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// misbehaveH2 applies the faults that need frames which no correct server writes. Each ends the
// stream itself.
func (s *Server) misbehaveH2(w *answer, r *http.Request, st *h2stream, f Fault) {
	size := min(cmp.Or(f.Size, 1000), 1<<20)
	const code = http2.ErrCodeInternal
	switch f.Kind {
	case Reset:
		st.reset(code)
	case ResetBody:
		w.Header().Set("Content-Length", strconv.FormatInt(2*size, 10))
		_, _ = w.Write(filler(size))
		w.Flush()
		st.reset(code)
	case ShortBody:
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = w.Write(filler(size / 2))
		return // run ends the stream gracefully
	case LongBody:
		w.Header().Set("Content-Length", strconv.FormatInt(size/2, 10))
		_, _ = w.Write(filler(size))
		return
	case GoAwayUnprocessed:
		if st.h.disown(st.id) {
			st.h.drop(st.id, errH2Gone)
		} else { // a later stream is being answered: refuse only this one (RFC 9113, 8.7)
			st.reset(http2.ErrCodeRefusedStream)
			st.h.leave()
		}
	case EndlessHeaders:
		w.status = http.StatusOK
		_ = st.endlessBlock(cmp.Or(f.Size, 64<<20), ":status", "200")
		st.h.conn.Close()
	case EndlessTrailers:
		_, _ = w.Write([]byte("{}"))
		w.Flush()
		_ = st.endlessBlock(cmp.Or(f.Size, 64<<20), "x-endless", "0")
		st.h.conn.Close()
	case BodyAfterReset:
		w.status = http.StatusOK
		_ = st.writeHead(http.StatusOK, false)
		_ = st.h.write(func() error {
			_ = st.h.fr.WriteRSTStream(st.id, code)
			return st.h.fr.WriteData(st.id, true, filler(100)) // fits into any window
		})
		st.h.drop(st.id, errH2Gone)
	case Unasked101:
		// HTTP/2 has no 101 (RFC 9113, 8.6).
		w.status = http.StatusSwitchingProtocols
		_ = st.writeHead(http.StatusSwitchingProtocols, false)
		select { // the client has half a second to reset it
		case <-time.After(time.Second / 2):
		case <-r.Context().Done():
		}
		st.reset(code)
	}
	panic(http.ErrAbortHandler)
}

// endlessBlock sends an unfinished header block that begins with a field. No other frame may be
// sent within a block, so the connection is blocked meanwhile. Every field is a never-indexed
// literal, which leaves the tables of both sides unchanged.
func (st *h2stream) endlessBlock(size int64, name, value string) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	field := func(name, value string) {
		_ = enc.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	field(name, value)
	return st.h.write(func() error {
		err := st.h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: st.id, BlockFragment: block.Bytes()})
		for n := int64(0); err == nil && n < size; n += int64(block.Len()) {
			block.Reset()
			field("x-endless-"+strconv.FormatInt(n, 10), string(filler(8<<10)))
			err = st.h.fr.WriteContinuation(st.id, false, block.Bytes())
		}
		return err
	})
}
