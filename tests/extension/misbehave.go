package extension

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// misbehave applies f; true means that the request must be answered nevertheless.
func (s *Server) misbehave(w *answer, r *http.Request, x *exchange, f Fault) bool {
	switch f.Kind {
	case Slow:
		wait(r, f.Delay)
		return true
	case NoAggregated:
		writeStatus(w, cmp.Or(f.Code, http.StatusNotFound), "no aggregated discovery here")
	case Status:
		writeStatus(w, cmp.Or(f.Code, http.StatusInternalServerError), cmp.Or(f.Text, "told to fail"))
	case Redirect:
		w.Header().Set("Location", cmp.Or(f.Text, "https://127.0.0.1:1/elsewhere"))
		w.WriteHeader(http.StatusTemporaryRedirect)
	case Garbage:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("\x00\xff{]not what it says\n"))
	case Hang:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case HangBody:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.Flush()
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case HugeBody:
		huge(w, cmp.Or(f.Size, 1<<30))
	case GzipBomb:
		bomb(w, cmp.Or(f.Size, 256<<20))
	case SlowBody:
		slowBody(w, r, f.Delay, cmp.Or(f.Size, 1000))
	case InformationalFlood:
		flood(w, r, cmp.Or(f.Size, 10_000))
		return true
	case ResetConn:
		x.conn.rst()
		panic(http.ErrAbortHandler)
	case GoAway:
		if x.stream != nil {
			x.stream.h.leave()
		} else {
			w.Header().Set("Connection", "close")
		}
		return true
	default:
		if x.stream != nil {
			s.misbehaveH2(w, r, x.stream, f)
		} else {
			s.misbehaveH1(w, r, x, f)
		}
	}
	return false
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

// bomb sends a compressed JSON string of n bytes.
func bomb(w http.ResponseWriter, n int64) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Encoding", "gzip")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		panic(err) // a valid level
	}
	huge(unpacked{w, z}, n)
	_ = z.Close()
}

// unpacked compresses what is written.
type unpacked struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (u unpacked) Write(p []byte) (int, error) { return u.z.Write(p) }

func slowBody(w *answer, r *http.Request, pause time.Duration, size int64) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.FormatInt(size/10*10, 10))
	for range 10 {
		if _, err := w.Write(filler(size / 10)); err != nil {
			return
		}
		w.Flush()
		wait(r, pause)
	}
}

func flood(w *answer, r *http.Request, n int64) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	for range n {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusEarlyHints)
	}
	w.Header().Del("Link")
}

// filler returns n bytes that need no escaping in JSON; at most 1 MiB.
func filler(n int64) []byte { return bytes.Repeat([]byte("x"), int(min(n, 1<<20))) }

// misbehaveH1 applies the faults that net/http cannot cause, directly on the connection.
func (s *Server) misbehaveH1(w *answer, r *http.Request, x *exchange, f Fault) {
	if f.Kind == Reset || f.Kind == GoAwayUnprocessed {
		x.conn.rst()
		panic(http.ErrAbortHandler)
	}
	size := min(cmp.Or(f.Size, 1000), 1<<20)
	conn, rw, err := w.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	out := rw.Writer
	switch f.Kind {
	case ResetBody:
		w.status = http.StatusOK
		_, _ = fmt.Fprintf(out, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 2*size, filler(size))
		_ = out.Flush()
		x.conn.rst()
	case ShortBody:
		w.status = http.StatusOK
		_, _ = fmt.Fprintf(out, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, filler(size/2))
	case LongBody:
		w.status = http.StatusOK
		_, _ = fmt.Fprintf(out, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size/2, filler(size))
	case EndlessHeaders:
		w.status = http.StatusOK
		endlessLines(out, "HTTP/1.1 200 OK\r\n", cmp.Or(f.Size, 64<<20))
	case EndlessTrailers:
		w.status = http.StatusOK
		endlessLines(out, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Endless\r\n\r\n2\r\n{}\r\n0\r\n", cmp.Or(f.Size, 64<<20))
	case BodyAfterReset:
		w.status = http.StatusOK
		_, _ = io.WriteString(out, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
		_ = out.Flush()
		linger(conn)
	case Unasked101:
		w.status = http.StatusSwitchingProtocols
		_, _ = fmt.Fprintf(out, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", cmp.Or(f.Text, "surprise"))
		_ = out.Flush()
		s.linger101(r, x, rw, conn)
	}
	_ = out.Flush()
}

// endlessLines sends begin and then header lines.
func endlessLines(out *bufio.Writer, begin string, size int64) {
	_, err := io.WriteString(out, begin)
	for n := int64(0); err == nil && n < size; {
		var k int
		k, err = fmt.Fprintf(out, "X-Endless-%d: %s\r\n", n, filler(1000))
		n += int64(k)
	}
}

// linger keeps a connection open for a second, or until the client closes it, so that the client
// reacts first.
func linger(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, conn)
}

// linger101 records what a client sends after an unexpected 101 as a separate request, with the
// first line as its target.
func (s *Server) linger101(r *http.Request, x *exchange, rw *bufio.ReadWriter, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	line, _ := rw.ReadSlice('\n')
	if len(line) == 0 {
		return
	}
	smuggled := &http.Request{Method: "AFTER-101", RequestURI: string(line), Proto: r.Proto}
	rec := s.ring.add(smuggled, x, Unasked101)
	s.ring.finish(rec, smuggled, &bodyCount{}, 0)
}
