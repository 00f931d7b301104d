package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/relay"
)

// received is one request as a backend received it.
type received struct {
	method, target, proto string
	header                http.Header
	trailer               http.Header
	peer                  string
	body                  string
}

// far is a TLS server that records the requests it receives.
type far struct {
	*httptest.Server
	mu   sync.Mutex
	got  []received
	open map[string]bool // connections, by the peer's address
}

func (f *far) isOpen(address string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open[address]
}

func (f *far) last(t *testing.T) received {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.got) == 0 {
		t.Fatal("nothing was received")
	}
	return f.got[len(f.got)-1]
}

func (f *far) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got)
}

// authorities are the CAs of a test.
type authorities struct{ client, front, serving *pki.CA }

// newFar starts a server that records requests, then runs h. Without h2 it speaks only HTTP/1.1.
func newFar(t *testing.T, a *authorities, h2 bool, name string, h http.HandlerFunc) *far {
	t.Helper()
	f := &far{open: map[string]bool{}}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" { // the pools' probe
			return
		}
		var body []byte
		if r.Header.Get("X-Unread") == "" {
			body, _ = io.ReadAll(r.Body)
		}
		got := received{method: r.Method, target: r.RequestURI, proto: r.Proto, header: r.Header.Clone(), trailer: r.Trailer.Clone(), body: string(body)}
		got.header.Set("Host", r.Host)
		if len(r.TLS.PeerCertificates) > 0 {
			got.peer = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		f.mu.Lock()
		f.got = append(f.got, got)
		f.mu.Unlock()
		h(w, r)
	}))
	pair := a.serving.Issue(pki.Leaf{Names: []string{name, "127.0.0.1"}}).TLS()
	f.EnableHTTP2 = h2
	f.Config.ConnState = func(c net.Conn, state http.ConnState) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open[c.RemoteAddr().String()] = state != http.StateClosed && state != http.StateHijacked
	}
	f.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.front.Pool(), MinVersion: tls.VersionTLS12}
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// faulty is a backend that speaks frames: it reads a whole request, counts it as executed or not,
// and then acts on it.
type faulty struct {
	address  string
	pair     atomic.Pointer[tls.Certificate]
	executed atomic.Int64
}

// act handles the request of a stream. If it returns false the connection is closed.
type act func(f *faulty, fr *http2.Framer, stream uint32) bool

func newFaulty(t *testing.T, do act) *faulty {
	t.Helper()
	f := &faulty{}
	l := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.pair.Load(), nil }, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
	}))(t)
	f.address = l.Addr().String()
	relay.Accept(t, l, func(_ context.Context, c net.Conn) {
		if err := f.serve(c, do); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			t.Logf("faulty backend: %v", err)
		}
	})
	return f
}

func (f *faulty) serve(c net.Conn, do act) error {
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	fr := http2.NewFramer(c, c)
	if err := fr.WriteSettings(); err != nil {
		return err
	}
	for {
		frame, err := fr.ReadFrame()
		if err != nil {
			return err
		}
		end := false
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = fr.WritePing(true, frame.Data)
			}
		case *http2.HeadersFrame:
			end = frame.StreamEnded()
		case *http2.DataFrame:
			end = frame.StreamEnded()
		}
		if err != nil {
			return err
		}
		if end && !do(f, fr, frame.Header().StreamID) {
			return nil
		}
	}
}

// refuse sends REFUSED_STREAM: the request was not processed.
func refuse(_ *faulty, fr *http2.Framer, stream uint32) bool {
	return fr.WriteRSTStream(stream, http2.ErrCodeRefusedStream) == nil
}

// goaway sends a GOAWAY below the stream, so the request was not processed, and closes.
func goaway(_ *faulty, fr *http2.Framer, stream uint32) bool {
	_ = fr.WriteGoAway(max(stream, 2)-2, http2.ErrCodeNo, nil)
	return false
}

// goawayExecuted executes, sends a GOAWAY that includes the stream, and closes without an answer.
func goawayExecuted(f *faulty, fr *http2.Framer, stream uint32) bool {
	f.executed.Add(1)
	_ = fr.WriteGoAway(stream, http2.ErrCodeNo, nil)
	return false
}

// resetExecuted executes the request and resets the stream.
func resetExecuted(f *faulty, fr *http2.Framer, stream uint32) bool {
	f.executed.Add(1)
	return fr.WriteRSTStream(stream, http2.ErrCodeInternal) == nil
}

// created executes the request and sends the head of the answer.
func (f *faulty) created(fr *http2.Framer, stream uint32) {
	f.executed.Add(1)
	head := bytes.NewBuffer(nil)
	enc := hpack.NewEncoder(head)
	_ = enc.WriteField(hpack.HeaderField{Name: ":status", Value: "201"})
	_ = enc.WriteField(hpack.HeaderField{Name: "content-length", Value: "2"})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true})
}

// createdThenReset, createdThenClose and createdThenShort break off the answer in different ways.
func createdThenReset(f *faulty, fr *http2.Framer, stream uint32) bool {
	f.created(fr, stream)
	return fr.WriteRSTStream(stream, http2.ErrCodeInternal) == nil
}

func createdThenClose(f *faulty, fr *http2.Framer, stream uint32) bool {
	f.created(fr, stream)
	return false
}

func createdThenShort(f *faulty, fr *http2.Framer, stream uint32) bool {
	f.created(fr, stream)
	return fr.WriteData(stream, true, []byte("{")) == nil
}

// closeExecuted executes the request and closes the connection.
func closeExecuted(f *faulty, _ *http2.Framer, _ uint32) bool {
	f.executed.Add(1)
	return false
}
