package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// netHTTP is a port as it is on the net/http lane.
func netHTTP(t *testing.T, h http.Handler) (address string, client *tls.Config) {
	t.Helper()
	ca := pki.NewCA("serving")
	s := newServer(h, &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, MinVersion: tls.VersionTLS12}, 100, slog.New(slog.DiscardHandler))
	if _, err := calm(s, 100, func(context.Context) {}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(s, l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String(), &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
}

// rawClient writes frames.
type rawClient struct {
	*http2.Framer
	*tls.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
}

func dialRaw(t *testing.T, address string, c *tls.Config) *rawClient {
	t.Helper()
	c.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", address, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := &rawClient{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	r.enc = hpack.NewEncoder(&r.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return r
}

// head is a GET with more fields, the block that has them.
func (r *rawClient) head(fields ...hpack.HeaderField) []byte {
	r.block.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: "/"}}, fields...) {
		_ = r.enc.WriteField(f) // block is memory
	}
	return r.block.Bytes()
}

// bomb is a head that ends in a reference to an entry of 4 KB, which it has put into the dynamic table when it is the first.
func bomb(r *rawClient) []byte {
	return r.head(hpack.HeaderField{Name: "x-bomb", Value: strings.Repeat("b", 3900)})
}

// told reads to the connection's end and returns with which GOAWAY it ended, and how many streams had been answered or reset until then.
func (r *rawClient) told(t *testing.T) (code http2.ErrCode, streams int) {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := r.ReadFrame()
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			t.Fatalf("after %d streams nobody has ended the connection", streams)
		}
		if err != nil {
			return code, streams
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			code = f.ErrCode
		case *http2.HeadersFrame, *http2.RSTStreamFrame:
			streams++
		}
	}
}

// Whoever asks for what no handler sees has to connect anew, as on the frame lane.
func TestUnservedIsPaidFor(t *testing.T) {
	for _, tc := range []struct {
		name string
		// step opens a stream.
		step    func(r *rawClient, id uint32) error
		streams int // that are answered or reset at most
	}{
		{"heads above the limit", func(r *rawClient, id uint32) error {
			block := bomb(r)
			if id > 1 {
				block = append(slices.Clone(block), bytes.Repeat(block[len(block)-1:], 70)...)
			}
			return r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true, EndHeaders: true})
		}, 1 + budget.Burst/budget.Refused + maxLimbo},
		{"malformed heads above it", func(r *rawClient, id uint32) error {
			block := bytes.Repeat([]byte{0x80 | 62}, 70) // the youngest entry of the dynamic table, again and again
			if id == 1 {
				block = bomb(r)
			}
			return r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true, EndHeaders: true})
		}, 1 + budget.Burst/budget.Refused + maxLimbo},
		{"streams above the limit", func(r *rawClient, id uint32) error {
			return r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.head(), EndStream: true, EndHeaders: true})
		}, 100 + budget.Burst/budget.Reset + maxLimbo},
		{"requests that are given up", func(r *rawClient, id uint32) error {
			return errors.Join(
				r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.head(), EndStream: true, EndHeaders: true}),
				r.WriteRSTStream(id, http2.ErrCodeCancel))
		}, 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			address, c := netHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			r := dialRaw(t, address, c)
			began := time.Now()
			go func() {
				for id := uint32(1); tc.step(r, id) == nil; id += 2 { // ends with the connection
				}
			}()
			code, n := r.told(t)
			most := tc.streams + int(time.Since(began)*budget.Rate/budget.Reset/time.Second) // what came back meanwhile
			if code != http2.ErrCodeEnhanceYourCalm || n > most {
				t.Errorf("ended with %v after %d streams, want ENHANCE_YOUR_CALM after %d at most", code, n, most)
			}
		})
	}
}

// Whoever is served pays nothing, whatever else net/http sends: a reset without an error to whose body is not read, an end in the head to who asks for a head.
func TestServedIsFree(t *testing.T) {
	var connections sync.Map
	address, c := netHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connections.Store(r.RemoteAddr, true)
		_, _ = io.WriteString(w, "served")
	}))
	transport := &http.Transport{TLSClientConfig: c, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	defer transport.CloseIdleConnections()
	ask := func(n int) error {
		method, body := http.MethodGet, io.Reader(nil)
		switch n % 3 {
		case 1:
			method = http.MethodHead
		case 2:
			method, body = http.MethodPost, strings.NewReader(strings.Repeat("b", 100_000))
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+address, body)
		if err != nil {
			return err
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	if err := ask(0); err != nil { // one connection for all
		t.Fatal(err)
	}
	var all errgroup.Group
	for worker := range 30 {
		all.Go(func() error {
			for n := range 100 {
				if err := ask(worker + n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	n := 0
	connections.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d connections, want one", n)
	}
}

func TestFrames(t *testing.T) {
	var wire bytes.Buffer
	f := http2.NewFramer(&wire, nil)
	if err := errors.Join(
		f.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}),
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("block"), EndHeaders: true}),
		f.WriteData(1, true, bytes.Repeat([]byte{1}, 1000)),
		f.WriteRSTStream(3, http2.ErrCodeRefusedStream),
		f.WritePing(true, [8]byte{1}),
		f.WriteData(1<<31-1, false, nil),
		f.WriteRawFrame(http2.FrameRSTStream, 0, 5, []byte("of a wrong size")),
		f.WriteGoAway(7, http2.ErrCodeNo, nil),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"SETTINGS 0 0 0", "HEADERS 1 4 0", "DATA 1 1 0", "RST_STREAM 3 0 7", "PING 0 1 0", "DATA 2147483647 0 0", "RST_STREAM 5 0 0", "GOAWAY 0 0 0",
	}
	for piece := 1; piece <= wire.Len(); piece++ {
		var fs frames
		var got []string
		for p := range slices.Chunk(wire.Bytes(), piece) {
			fs.follow(p, func(f *frames) {
				code := http2.ErrCode(0)
				if f.kind() == http2.FrameRSTStream && f.n > frameHeader {
					code = f.code()
				}
				got = append(got, fmt.Sprint(f.kind(), " ", f.stream(), " ", uint8(f.flags()), " ", uint32(code)))
			})
		}
		if !slices.Equal(got, want) {
			t.Fatalf("in pieces of %d: %q, want %q", piece, got, want)
		}
	}
}

// What is paid comes back with time.
func TestPayingTakesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPayingConn(nil, 100)
		charged := 0
		c.charge = func() { charged++ }
		refused := &frames{head: [13]byte{3: byte(http2.FrameRSTStream), 12: byte(http2.ErrCodeRefusedStream)}}
		for range 10 * budget.Burst / budget.Reset {
			c.wrote(refused)
			time.Sleep(time.Second * budget.Reset / budget.Rate)
		}
		if c.over {
			t.Fatal("a steady client was ended")
		}
		for range budget.Burst / budget.Reset {
			c.wrote(refused)
		}
		if c.over {
			t.Fatal("ended within the burst")
		}
		if c.wrote(refused); !c.over {
			t.Error("not ended beyond it")
		}
		if c.wrote(refused); charged != 1 {
			t.Errorf("its user is charged %d times, want once", charged)
		}
	})
}

// Streams of which nothing is ever heard, as after a GOAWAY, are read slowly; those that come to a handler are not.
func TestLimboIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			served bool
			want   time.Duration
		}{"ignored": {false, (100 - maxLimbo) * limboTime}, "served": {true, 0}} {
			c := newPayingConn(nil, 100)
			began := time.Now()
			for i := range 100 {
				opened := &frames{head: [13]byte{3: byte(http2.FrameHeaders), 8: byte(2*i + 1)}}
				c.read(opened)
				if tc.served {
					pay((&http.Request{}).WithContext(context.WithValue(t.Context(), payingKey{}, c)))
				}
				if c.await() {
					t.Fatalf("%s: ended", name)
				}
			}
			if took := time.Since(began); took != tc.want {
				t.Errorf("%s: took %v, want %v", name, took, tc.want)
			}
		}
	})
}
