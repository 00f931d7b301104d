package extension_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// frames is a client that writes and reads single frames.
type frames struct {
	*http2.Framer
	t    *testing.T
	conn *tls.Conn
}

func dialH2(t *testing.T, s *extension.Server) *frames {
	t.Helper()
	conn := must.Get((&tls.Dialer{Config: s.TLS()}).DialContext(t.Context(), "tcp", s.Addr()))(t)
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	f := &frames{Framer: http2.NewFramer(conn, conn), t: t, conn: conn.(*tls.Conn)}
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = f.WriteSettings()
	return f
}

func (f *frames) open(id uint32, end bool, method, path string, more ...hpack.HeaderField) {
	f.t.Helper()
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: path},
	}, more...) {
		_ = enc.WriteField(h)
	}
	must.Do(f.t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: end}))
}

// next returns the next frame that is neither SETTINGS nor WINDOW_UPDATE, or nil if the connection
// ended.
func (f *frames) next() http2.Frame {
	f.t.Helper()
	for {
		fr, err := f.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			f.t.Fatalf("reading frame: %v", err)
		}
		switch fr.(type) {
		case *http2.SettingsFrame, *http2.WindowUpdateFrame:
		default:
			return fr
		}
	}
}

func TestPing(t *testing.T) {
	f := dialH2(t, extension.Start(t, extension.Config{}))
	_ = f.WritePing(false, [8]byte{1, 2, 3})
	if p, ok := f.next().(*http2.PingFrame); !ok || !p.IsAck() || p.Data != [8]byte{1, 2, 3} {
		t.Errorf("got %v, want the ping back", p)
	}
}

func TestGoAway(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	must.Do(t, s.Set(extension.Fault{Kind: extension.GoAway, Every: 2}))
	f := dialH2(t, s)
	f.open(1, true, "GET", "/healthz")
	f.next() // HEADERS
	f.next() // DATA
	f.open(3, true, "GET", "/healthz")
	if g, ok := f.next().(*http2.GoAwayFrame); !ok || g.LastStreamID != 3 || g.ErrCode != http2.ErrCodeNo {
		t.Fatalf("got %v, want GOAWAY of stream 3", g)
	}
	if h, ok := f.next().(*http2.MetaHeadersFrame); !ok || h.StreamID != 3 {
		t.Errorf("got %v, want the response", h)
	}
	f.next() // DATA
	if rest := f.next(); rest != nil {
		t.Errorf("got %v, want the end of the connection", rest)
	}
}

// Each of many concurrent requests may announce the end of the connection, and none may disown
// another that is answered.
func TestGoAwayOfMany(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	must.Do(t, s.Set(extension.Fault{Kind: extension.GoAway}))
	f := dialH2(t, s)
	for id := uint32(1); id < 60; id += 2 {
		f.open(id, true, "GET", "/healthz")
	}
	last, answered := uint32(1<<31-1), uint32(0)
	for fr := f.next(); fr != nil; fr = f.next() {
		switch fr := fr.(type) {
		case *http2.GoAwayFrame:
			if fr.LastStreamID > last {
				t.Errorf("the last stream was %d, and later %d", last, fr.LastStreamID)
			}
			last = fr.LastStreamID
		case *http2.MetaHeadersFrame:
			answered = max(answered, fr.StreamID)
		}
	}
	if answered == 0 || answered > last {
		t.Errorf("stream %d was answered, but the announced last stream is %d", answered, last)
	}
}

func TestGoAwayUnprocessed(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	must.Do(t, s.Set(extension.Fault{Kind: extension.GoAwayUnprocessed}))
	f := dialH2(t, s)
	f.open(1, true, "GET", "/healthz")
	if g, ok := f.next().(*http2.GoAwayFrame); !ok || g.LastStreamID != 0 {
		t.Fatalf("got %v, want GOAWAY before stream 1", g)
	}
	if rest := f.next(); rest != nil {
		t.Errorf("got %v, want the end of the connection", rest)
	}
	// Go's client repeats such a request on another connection: the second, fourth, … are answered.
	must.Do(t, s.Set(extension.Fault{Kind: extension.GoAwayUnprocessed, Every: 2}))
	c := client(t, s, "HTTP/2.0", nil)
	for range 2 {
		if res, _ := ask(t, c, "GET", s.URL()+"/healthz", nil); res.StatusCode != 200 {
			t.Errorf("status %d", res.StatusCode)
		}
	}
}

// A client sends a request again that was announced as not processed: the announcement must be true
// for every request on the connection.
func TestGoAwayUnprocessedIsTrue(t *testing.T) {
	var mu sync.Mutex
	executed := map[string]int{}
	s := extension.Start(t, extension.Config{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			executed[r.URL.Path]++
			mu.Unlock()
			next.ServeHTTP(w, r)
		})
	}})
	must.Do(t, s.Set(extension.Fault{Kind: extension.GoAwayUnprocessed, Every: 5}))
	c := client(t, s, "HTTP/2.0", nil)
	var all sync.WaitGroup
	for i := range 150 {
		all.Go(func() { _, _, _ = request(t.Context(), c, "POST", s.URL()+fmt.Sprint("/", i), strings.NewReader("x")) })
	}
	all.Wait()
	for path, n := range executed {
		if n > 1 {
			t.Errorf("%s was executed %d times", path, n)
		}
	}
	if len(executed) < 50 {
		t.Errorf("%d requests were executed", len(executed))
	}
}

func TestBodyAfterReset(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	must.Do(t, s.Set(extension.Fault{Kind: extension.BodyAfterReset}))
	f := dialH2(t, s)
	f.open(1, true, "GET", "/healthz")
	f.next() // HEADERS
	if r, ok := f.next().(*http2.RSTStreamFrame); !ok || r.StreamID != 1 {
		t.Fatalf("got %v, want RST_STREAM", r)
	}
	if d, ok := f.next().(*http2.DataFrame); !ok || d.StreamID != 1 || len(d.Data()) != 100 {
		t.Errorf("got %v, want DATA", d)
	}
}

func TestRefusedStreams(t *testing.T) {
	s := extension.Start(t, extension.Config{MaxStreams: 1})
	must.Do(t, s.Set(extension.Fault{Kind: extension.Hang}))
	f := dialH2(t, s)
	f.open(1, true, "GET", "/healthz")
	f.open(3, true, "GET", "/healthz")
	if r, ok := f.next().(*http2.RSTStreamFrame); !ok || r.StreamID != 3 || r.ErrCode != http2.ErrCodeRefusedStream {
		t.Errorf("got %v, want a refusal of stream 3", r)
	}
}

// Answers to a client that does not read are bounded, and a client that exceeds its window loses
// its connection.
func TestFloods(t *testing.T) {
	t.Run("window", func(t *testing.T) {
		s := extension.Start(t, extension.Config{})
		must.Do(t, s.Set(extension.Fault{Kind: extension.Hang}))
		f := dialH2(t, s)
		f.open(1, false, "POST", "/healthz")
		chunk := make([]byte, 16<<10)
		for range 5 {
			_ = f.WriteData(1, false, chunk)
		}
		if g, ok := f.next().(*http2.GoAwayFrame); !ok || g.ErrCode != http2.ErrCodeFlowControl {
			t.Errorf("got %v, want GOAWAY with FLOW_CONTROL_ERROR", g)
		}
	})
	t.Run("head", func(t *testing.T) {
		s := extension.Start(t, extension.Config{})
		f := dialH2(t, s)
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		for _, p := range []string{":method=GET", ":scheme=https", ":path=/", ":authority=x"} {
			name, value, _ := strings.Cut(p, "=")
			_ = enc.WriteField(hpack.HeaderField{Name: name, Value: value})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b.Bytes(), EndStream: true})
		for i := 0; ; i++ {
			b.Reset()
			_ = enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 8<<10), Sensitive: true})
			if err := f.WriteContinuation(1, i > 1000, b.Bytes()); err != nil || i > 1000 {
				break // 8 MiB at most: the connection fails by then, or the loop below reports the request
			}
		}
		for _, r := range s.Requests(0) {
			t.Errorf("a request with an endless head was served: %s", r.Target)
		}
	})
}

// Many concurrent streams have bodies in both directions, and some clients give up.
func TestConcurrentStreams(t *testing.T) {
	s := extension.Start(t, extension.Config{Record: -1})
	c := client(t, s, "HTTP/2.0", nil)
	body := bytes.Repeat([]byte("z"), 200<<10)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if i%4 == 0 { // give up halfway
				r, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL()+widgets+"/w/echo", bytes.NewReader(body))
				if res, err := c.Do(r); err == nil {
					_, _ = io.ReadFull(res.Body, make([]byte, 1000))
					res.Body.Close()
				}
				return
			}
			res, err := c.Post(s.URL()+widgets+"/w/echo", "", bytes.NewReader(body))
			if err != nil {
				t.Errorf("echo: %v", err)
				return
			}
			defer res.Body.Close()
			if back, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(back, body) {
				t.Errorf("%d bytes echoed: %v", len(back), err)
			}
		})
	}
	wg.Wait()
}
