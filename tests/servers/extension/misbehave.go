package extension

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
)

// misbehave applies f; true means that the request must be answered nevertheless.
func (s *Server) misbehave(w http.ResponseWriter, r *http.Request, x exchange, f Fault) bool {
	size := cmp.Or(f.Size, 1000)
	switch f.Kind {
	case "":
		return true
	case Slow:
		wait(r, f.Delay)
		return true
	case Status:
		writeStatus(w, cmp.Or(f.Code, http.StatusInternalServerError), "told to fail")
	case Redirect:
		w.Header().Set("Location", "https://127.0.0.1:1/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case Garbage:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("\x00\xff{]not what it says\n"))
	case Hang, HangBody:
		if f.Kind == HangBody {
			w.Header().Set("Content-Type", "application/json")
			flush(w)
		}
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case HugeBody:
		huge(w, cmp.Or(f.Size, 1<<30))
	case SlowBody:
		slowBody(w, r, f.Delay, size)
	case InformationalFlood:
		flood(w, r, cmp.Or(f.Size, 10_000))
		return true
	case ShortBody:
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = w.Write(filler(size / 2))
	case ResetBody:
		w.Header().Set("Content-Length", strconv.FormatInt(2*size, 10))
		_, _ = w.Write(filler(size))
		flush(w)
		s.reset(x)
	case Reset:
		s.reset(x)
	case ResetConn:
		x.c.rst()
		panic(http.ErrAbortHandler)
	case GoAway:
		w.Header().Set("Connection", "close") // on HTTP/2, net/http sends GOAWAY instead
		return true
	default:
		if r.ProtoMajor == 2 {
			misbehaveH2(w, r, x, f)
		} else {
			misbehaveH1(w, x, f)
		}
	}
	return false
}

// Below is for handlers of Config.Wrap that misbehave by themselves. Over HTTP/2, inject writes frames after the
// stream's head and, with data, its first DATA, which must have been flushed; over HTTP/1.1 it does nothing. end aborts
// the handler; it ends HTTP/1.1's connection, or with reset only HTTP/2's stream.
func Below(w http.ResponseWriter, r *http.Request) (inject func(head, data bool, write func(fr *http2.Framer, stream uint32)), end func(reset bool)) {
	x := exchange{session: r.Context().Value(sessionKey{}).(*session)}
	inject = func(bool, bool, func(*http2.Framer, uint32)) {}
	if r.ProtoMajor == 2 {
		x.stream = stream(w)
		x.faulty(x.stream)
		inject = func(head, data bool, write func(*http2.Framer, uint32)) {
			at, after := x.stream, http2.FrameHeaders
			if data {
				after = http2.FrameData
			} else if !head {
				at, after = 0, http2.FrameSettings
			}
			x.inject(r, at, after, func(fr *http2.Framer) error { write(fr, x.stream); return nil })
		}
	}
	return inject, func(reset bool) {
		if reset && x.stream == 0 {
			x.c.rst()
		} else if !reset {
			x.Close()
		}
		panic(http.ErrAbortHandler)
	}
}

// flush sends what was written so far.
func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// reset ends a request, which on HTTP/1.1 takes the connection.
func (s *Server) reset(x exchange) {
	if x.stream == 0 {
		x.c.rst()
	}
	panic(http.ErrAbortHandler) // on HTTP/2, net/http sends RST_STREAM
}

// wait waits for d, or until the client gives up.
func wait(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

// huge sends a JSON string of n bytes from a small buffer.
func huge(w http.ResponseWriter, n int64) {
	w.Header().Set("Content-Type", "application/json")
	_, err := io.WriteString(w, `"`)
	chunk := filler(32 << 10)
	for sent := int64(0); err == nil && sent < n; sent += int64(len(chunk)) {
		_, err = w.Write(chunk[:min(int64(len(chunk)), n-sent)])
	}
	_, _ = io.WriteString(w, `"`)
}

func slowBody(w http.ResponseWriter, r *http.Request, pause time.Duration, size int64) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.FormatInt(size/10*10, 10))
	for range 10 {
		if _, err := w.Write(filler(size / 10)); err != nil {
			return
		}
		flush(w)
		wait(r, pause)
	}
}

func flood(w http.ResponseWriter, r *http.Request, n int64) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	for range n {
		w.WriteHeader(http.StatusEarlyHints)
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // net/http may still read the map of a stream that was reset
		}
	}
	w.Header().Del("Link")
}

// filler returns n bytes that need no escaping in JSON; at most 1 MiB.
func filler(n int64) []byte { return bytes.Repeat([]byte("x"), int(min(n, 1<<20))) }

// misbehaveH1 applies the faults that net/http cannot cause, directly on the connection.
func misbehaveH1(w http.ResponseWriter, x exchange, f Fault) {
	if f.Kind == GoAwayUnprocessed {
		x.c.rst()
		panic(http.ErrAbortHandler)
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	const head = "HTTP/1.1 200 OK\r\n"
	switch f.Kind {
	case LongBody:
		size := cmp.Or(f.Size, 1000)
		_, _ = fmt.Fprintf(rw, head+"Content-Length: %d\r\n\r\n%s", size/2, filler(size))
	case EndlessHeaders:
		_, err = io.WriteString(rw, head)
		for n := int64(0); err == nil && n < cmp.Or(f.Size, 64<<20); n += 1000 {
			_, err = fmt.Fprintf(rw, "X-Endless-%d: %s\r\n", n, filler(1000))
		}
	case BodyAfterReset:
		_, _ = io.WriteString(rw, head+"Content-Length: 2\r\n\r\nok"+head+"Content-Length: 6\r\n\r\nforged")
	case Unasked101:
		_, _ = io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: surprise\r\n\r\n")
	}
	_ = rw.Flush()
	// The client reacts first: it has a second to close the connection.
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, conn)
}

// misbehaveH2 applies the faults that need frames which no correct server writes. The handler's
// end, or its panic, ends the stream.
func misbehaveH2(w http.ResponseWriter, r *http.Request, x exchange, f Fault) {
	size := cmp.Or(f.Size, 64<<20)
	x.faulty(x.stream)
	switch f.Kind {
	case LongBody:
		size := min(cmp.Or(f.Size, 1000), 16<<10) // one frame
		w.Header().Set("Content-Length", strconv.FormatInt(size/2, 10))
		flush(w)
		x.inject(r, x.stream, http2.FrameHeaders, func(fr *http2.Framer) error { return fr.WriteData(x.stream, false, filler(size)) })
		return
	case GoAwayUnprocessed:
		if !x.disown(r, x.stream) { // a later stream is being answered: refuse only this one (RFC 9113, 8.7)
			x.inject(r, 0, http2.FrameSettings, func(fr *http2.Framer) error { return fr.WriteRSTStream(x.stream, http2.ErrCodeRefusedStream) })
		}
	case EndlessHeaders:
		x.inject(r, 0, http2.FrameSettings, func(fr *http2.Framer) error { return endless(fr, x.stream, size) })
		x.c.Close()
	case BodyAfterReset:
		flush(w)
		x.inject(r, x.stream, http2.FrameHeaders, func(fr *http2.Framer) error {
			_ = fr.WriteRSTStream(x.stream, http2.ErrCodeInternal)
			return fr.WriteData(x.stream, true, filler(100)) // fits into any window
		})
	case Unasked101:
		// HTTP/2 has no 101 (RFC 9113, 8.6).
		w.WriteHeader(http.StatusSwitchingProtocols)
		wait(r, time.Second/2) // the client has that long to reset it
	}
	panic(http.ErrAbortHandler)
}
