package backend

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// faulty is a backend that speaks frames: it reads each request wholly, counts it as executed or not, and then does what answer says.
type faulty struct {
	listener net.Listener
	address  string
	executed atomic.Int64
	late     atomic.Bool // who answers sends the SETTINGS
	conns    atomic.Int64
	wg       sync.WaitGroup
	mu       sync.Mutex
	open     []net.Conn
}

// exchange is one request at a faulty backend.
type exchange struct {
	conn   net.Conn
	framer *http2.Framer
	stream uint32
	nth    int // of this connection, from 1
	fields []hpack.HeaderField
	body   []byte
	raw    []byte // the header block as sent
}

// answer acts on one request; with false the connection is closed.
type answer func(f *faulty, x *exchange) bool

func newFaulty(t *testing.T, proto string, act answer) *faulty {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	cert := s.TLS.Certificates[0]
	s.Close()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{proto}})
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{listener: l, address: l.Addr().String()}
	f.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.conns.Add(1)
			f.mu.Lock()
			f.open = append(f.open, c)
			f.mu.Unlock()
			f.wg.Go(func() {
				defer c.Close()
				if err := f.serve(c, proto, act); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
					t.Logf("faulty backend: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.mu.Lock()
		for _, c := range f.open {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return f
}

func (f *faulty) serve(c net.Conn, proto string, act answer) error {
	if proto == h1 {
		return f.serveHTTP1(c, act)
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return err
	}
	fr := http2.NewFramer(c, c)
	if !f.late.Load() {
		if err := fr.WriteSettings(); err != nil {
			return err
		}
	}
	decoder := hpack.NewDecoder(4096, nil)
	requests := map[uint32]*exchange{}
	nth := 0
	for {
		frame, err := fr.ReadFrame()
		if err != nil {
			return err
		}
		end := false
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				if err := fr.WriteSettingsAck(); err != nil {
					return err
				}
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				if err := fr.WritePing(true, frame.Data); err != nil {
					return err
				}
			}
		case *http2.HeadersFrame:
			nth++
			x := &exchange{conn: c, framer: fr, stream: frame.StreamID, nth: nth, raw: bytes.Clone(frame.HeaderBlockFragment())}
			x.fields, err = decoder.DecodeFull(frame.HeaderBlockFragment())
			if err != nil {
				return err
			}
			requests[frame.StreamID] = x
			end = frame.StreamEnded()
		case *http2.DataFrame:
			x := requests[frame.StreamID]
			if x == nil {
				continue
			}
			x.body = append(x.body, frame.Data()...)
			if n := uint32(len(frame.Data())); n > 0 {
				if err := errors.Join(fr.WriteWindowUpdate(0, n), fr.WriteWindowUpdate(frame.StreamID, n)); err != nil {
					return err
				}
			}
			end = frame.StreamEnded()
		}
		if end {
			x := requests[frame.Header().StreamID]
			delete(requests, x.stream)
			if !act(f, x) {
				return nil
			}
		}
	}
}

// serveHTTP1 reads heads without bodies.
func (f *faulty) serveHTTP1(c net.Conn, act answer) error {
	var head []byte
	buf := make([]byte, 4096)
	for nth := 1; ; nth++ {
		for !bytes.Contains(head, []byte("\r\n\r\n")) {
			n, err := c.Read(buf)
			if err != nil {
				return err
			}
			head = append(head, buf[:n]...)
		}
		head = nil
		if !act(f, &exchange{conn: c, nth: nth}) {
			return nil
		}
	}
}

// ok executes and answers.
func ok(f *faulty, x *exchange) bool {
	f.executed.Add(1)
	if x.framer == nil {
		_, err := io.WriteString(x.conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return err == nil
	}
	var block bytes.Buffer
	if err := hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"}); err != nil {
		return false
	}
	return x.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: x.stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}) == nil
}

// refuse says with REFUSED_STREAM that the request was not processed.
func refuse(_ *faulty, x *exchange) bool {
	return x.framer.WriteRSTStream(x.stream, http2.ErrCodeRefusedStream) == nil
}

// goaway says with a GOAWAY below the stream that the request was not processed, and closes.
func goaway(_ *faulty, x *exchange) bool {
	_ = x.framer.WriteGoAway(max(x.stream, 2)-2, http2.ErrCodeNo, nil)
	return false
}

// goawayExecuted promises to process the request, does so, and closes without an answer.
func goawayExecuted(f *faulty, x *exchange) bool {
	f.executed.Add(1)
	_ = x.framer.WriteGoAway(x.stream, http2.ErrCodeNo, nil)
	return false
}

// resetExecuted executes and resets the stream.
func resetExecuted(f *faulty, x *exchange) bool {
	f.executed.Add(1)
	return x.framer.WriteRSTStream(x.stream, http2.ErrCodeInternal) == nil
}

// closeExecuted executes and closes the connection.
func closeExecuted(f *faulty, _ *exchange) bool {
	f.executed.Add(1)
	return false
}

// garbage answers with something that is not HTTP.
func garbage(f *faulty, x *exchange) bool {
	f.executed.Add(1)
	_, _ = io.WriteString(x.conn, strings.Repeat("220 this is no HTTP ", 20)+"\r\n\r\n")
	return false
}
