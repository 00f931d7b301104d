package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A bidirectional stream of grpc-go, which does not use net/http on either side, with metadata and
// a status in the trailers.
func TestGRPCTransport(t *testing.T) { onDrivers(t, testGRPCTransport) }

func testGRPCTransport(t *testing.T, driver string) {
	backend := newBackend(t, nil)
	cert := backend.TLS.Certificates[0]
	backend.Close()
	l := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})),
		grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(echoMessages))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	var s *stand
	s = newStand(t, driver, nil, func(_ *Head, p *Plan) {
		p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint { return s.ep }}
	})
	s.ep = endpoint(l.Addr().String())

	cc := must.Get(grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}))))(t)
	defer cc.Close()
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	call := must.Get(cc.NewStream(metadata.AppendToOutgoingContext(t.Context(), "x-asked", "yes"), desc, "/test.Echo/Echo"))(t)
	for i := range 50 {
		want := bytes.Repeat([]byte{byte(i)}, i*5000)
		must.Do(t, call.SendMsg(&want))
		var got []byte
		if err := call.RecvMsg(&got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("message %d: %v, %d of %d bytes", i, err, len(got), len(want))
		}
	}
	must.Do(t, call.CloseSend())
	if err := call.RecvMsg(new([]byte)); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	if got := call.Trailer()["x-messages"]; len(got) != 1 || got[0] != "50 yes" {
		t.Errorf("trailers %v", call.Trailer())
	}
}

func echoMessages(_ any, s grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	for n := 0; ; n++ {
		var m []byte
		if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
			s.SetTrailer(metadata.Pairs("x-messages", fmt.Sprint(n, " ", strings.Join(md["x-asked"], ","))))
			return nil
		} else if err != nil {
			return err
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}

// rawCodec passes messages unchanged.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil } //nolint:forcetypeassert // ours

func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b) //nolint:forcetypeassert // ours
	return nil
}

// A client that sends its field block and body, and opens its window, one byte at a time.
func TestOneByteFramesAndWindows(t *testing.T) { onDrivers(t, testOneByteFramesAndWindows) }

func testOneByteFramesAndWindows(t *testing.T, driver string) {
	s := newStand(t, driver, httpEcho(), nil)
	c := must.Get(tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}))(t)
	defer c.Close()
	const size = 700
	fr := http2.NewFramer(c, c)
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{field(":method", "POST"), field(":scheme", "https"), field(":authority", "a"), field(":path", "/echo"), field("x-some", "value")} {
		_ = enc.WriteField(f)
	}
	must.Get(io.WriteString(c, http2.ClientPreface))(t)
	must.Do(t, fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
	b := block.Bytes()
	must.Do(t, fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:1]}))
	for i := 1; i < len(b); i++ {
		must.Do(t, fr.WriteContinuation(1, i == len(b)-1, b[i:i+1]))
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i)
		must.Do(t, fr.WriteData(1, i == size-1, want[i:i+1]))
	}
	var got []byte
	for ended := false; !ended; {
		switch f := must.Get(fr.ReadFrame())(t).(type) {
		case *http2.DataFrame:
			if len(f.Data()) > 1 {
				t.Fatalf("got %d bytes through a window of one", len(f.Data()))
			}
			got = append(got, f.Data()...)
			if ended = f.StreamEnded(); !ended && len(f.Data()) > 0 {
				must.Do(t, fr.WriteWindowUpdate(1, 1))
			}
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			t.Fatalf("the server sent %v", f)
		case *http2.HeadersFrame:
			ended = f.StreamEnded()
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes came back, or their content differs", len(got), len(want))
	}
}

// httpEcho answers with the request's body, or with n bytes for /n.
func httpEcho() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T")
		w.Header().Set("X-Proto", r.Proto)
		n := 0
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &n); err == nil {
			for ; n > 0; n -= len(leanBody) {
				_, _ = w.Write(leanBody[:min(n, len(leanBody))])
			}
		} else {
			_, _ = io.Copy(w, r.Body)
		}
		w.Header().Set("X-T", "end")
	}
}
