package h2

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// leanClient is a client's connection whose test sees every frame, and that allocates next to nothing.
type leanClient struct {
	net.Conn
	fr    *http2.Framer
	w     *bufio.Writer
	enc   *hpack.Encoder
	block bytes.Buffer
	next  uint32 // stream
}

func insecure() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, DynamicRecordSizingDisabled: true}
}

// greet sends a client's preface, with windows that no test uses up.
func greet(t testing.TB, c net.Conn) *leanClient {
	t.Helper()
	l := &leanClient{Conn: c, w: bufio.NewWriterSize(c, 128<<10), next: 1}
	l.fr = http2.NewFramer(l.w, bufio.NewReaderSize(c, 128<<10))
	l.fr.SetReuseFrames()
	l.fr.SetMaxReadFrameSize(1 << 24)
	l.enc = hpack.NewEncoder(&l.block)
	must.Get(l.w.WriteString(http2.ClientPreface))(t)
	const window = 1 << 30
	err := l.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	must.Do(t, errors.Join(err, l.fr.WriteWindowUpdate(0, window), l.w.Flush()))
	return l
}

// greet connects, and returns when the server serves the connection.
func (s *stand) greet() *leanClient {
	s.t.Helper()
	l := greet(s.t, must.Get(tls.Dial("tcp", s.addr, insecure()))(s.t))
	s.t.Cleanup(func() { _ = l.Close() })
	must.Get(l.fr.ReadFrame())(s.t)
	return l
}

// open writes a request, which is sent by the next flush.
func (l *leanClient) open(method, path string, end bool) error {
	l.block.Reset()
	for _, f := range []hpack.HeaderField{field(":method", method), field(":scheme", "https"), field(":authority", "a"), field(":path", path)} {
		_ = l.enc.WriteField(f)
	}
	id := l.next
	l.next += 2
	return l.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: l.block.Bytes(), EndStream: end, EndHeaders: true})
}

func (l *leanClient) gets(n int, path string) error {
	for range n {
		if err := l.open("GET", path, true); err != nil {
			return err
		}
	}
	return l.w.Flush()
}

func (l *leanClient) run(n, streams int) error {
	err := l.gets(streams, "/")
	for asked, done := streams, 0; done < n && err == nil; {
		var f http2.Frame
		if f, err = l.fr.ReadFrame(); err != nil {
			return err
		}
		if kind := f.Header().Type; kind == http2.FrameRSTStream || kind == http2.FrameGoAway {
			return fmt.Errorf("got %v after %d answers", f, done)
		}
		if d, ok := f.(*http2.DataFrame); !ok || !d.StreamEnded() {
			continue
		}
		if done++; asked < n {
			asked++
			err = l.gets(1, "/")
		}
	}
	return err
}
