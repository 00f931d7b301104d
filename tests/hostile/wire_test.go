//go:build e2e

package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wire is a client's connection that may write any frames. Its output is buffered until flush.
type wire struct {
	tls   *tls.Conn
	out   *bufio.Writer
	fr    *http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
	next  uint32 // the next stream to open

	gone    chan struct{} // closed when the server has ended the connection
	answers chan int      // the status of an answer that somebody waits for, 0 if the stream was reset
	goAway  atomic.Int64  // the code of the last GOAWAY, -1: none came
}

// connect opens an HTTP/2 connection. If reads is false, it never reads after the handshake.
func connect(ctx context.Context, address string, c *tls.Config, reads bool, settings ...http2.Setting) (*wire, error) {
	dialer := &net.Dialer{}
	if !reads { // only a few KiB are buffered: by default the kernel buffers megabytes
		dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) }), err)
		}
	}
	return connectBy(ctx, dialer, address, c, reads, settings...)
}

// connectBy is connect with a dialer.
func connectBy(ctx context.Context, dialer *net.Dialer, address string, c *tls.Config, reads bool, settings ...http2.Setting) (*wire, error) {
	c = c.Clone()
	c.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{NetDialer: dialer, Config: c}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	w := &wire{tls: conn.(*tls.Conn), out: bufio.NewWriterSize(conn, 32<<10), next: 1, gone: make(chan struct{}), answers: make(chan int, 1)} //nolint:forcetypeassert // a tls.Dialer makes no other
	w.goAway.Store(-1)
	w.fr = http2.NewFramer(w.out, bufio.NewReader(conn))
	w.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil) // the default of SETTINGS_HEADER_TABLE_SIZE
	w.enc = hpack.NewEncoder(&w.block)
	_, err = w.out.WriteString(http2.ClientPreface)
	if err := errors.Join(err, w.fr.WriteSettings(settings...), w.flush()); err != nil {
		return nil, err
	}
	if reads {
		go w.read() // ends with the connection
	}
	return w, nil
}

func (w *wire) close() { _ = w.tls.NetConn().Close() }

// flush writes the buffer. A server that reads nothing for 5 s has stopped reading.
func (w *wire) flush() error {
	if err := w.tls.SetWriteDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	return w.out.Flush()
}

func (w *wire) read() {
	defer close(w.gone)
	w.fr.SetReuseFrames()
	for {
		f, err := w.fr.ReadFrame()
		if err != nil {
			if _, ok := errors.AsType[http2.StreamError](err); ok {
				continue
			}
			return
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			w.goAway.Store(int64(f.ErrCode))
		case *http2.MetaHeadersFrame:
			n, _ := strconv.Atoi(f.PseudoValue("status"))
			w.answered(n)
		case *http2.RSTStreamFrame:
			w.answered(0)
		}
	}
}

// answered keeps a status for who waits for one.
func (w *wire) answered(status int) {
	select {
	case w.answers <- status:
	default:
	}
}

func (w *wire) head(method, path string, fields ...string) []byte {
	w.block.Reset()
	all := append([]string{":method", method, ":scheme", "https", ":authority", "localhost", ":path", path}, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = w.enc.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}) // block is memory
	}
	return w.block.Bytes()
}

func (w *wire) ask(method, path string, end bool, fields ...string) (uint32, error) {
	id := w.next
	w.next += 2
	return id, w.open(id, w.head(method, path, fields...), end, true)
}

// open sends a head, or only the part of it that whole says.
func (w *wire) open(id uint32, block []byte, end, whole bool) error {
	first := block[:min(len(block), 16<<10)]
	err := w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: whole && len(first) == len(block)})
	for block = block[len(first):]; err == nil && len(block) > 0; {
		part := block[:min(len(block), 16<<10)]
		block = block[len(part):]
		err = w.fr.WriteContinuation(id, whole && len(block) == 0, part)
	}
	return err
}

// ending reports how the server ended the connection.
func (w *wire) ending() string {
	select {
	case <-w.gone:
	case <-time.After(time.Second):
		return "open"
	}
	if code := w.goAway.Load(); code >= 0 {
		return fmt.Sprint(http2.ErrCode(code)) // the server sent one
	}
	return "closed"
}
