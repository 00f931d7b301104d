package engine_test

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// The bytes of a client go in, and bytes for it come out: no socket, goroutine or clock.
func ExampleEngine() {
	e := engine.New(engine.Config{
		Memory: hold.New(0), Clock: func() time.Time { return time.Unix(0, 0).UTC() },
		Decide: func(_ *engine.Conn, h *wire.Head, _ func(engine.Plan)) (engine.Plan, bool) {
			body := []byte(h.Method + " " + h.Path)
			return engine.Plan{Answer: &engine.Answer{Status: 200, Fields: []hpack.HeaderField{{Name: ":status", Value: "200"}}, Body: body}}, true
		},
	})
	client := e.AcceptClient()

	var in, block bytes.Buffer
	in.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&in, nil), hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "example.com"}, {":path", "/version"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	e.Feed(client, in.Bytes())

	var work engine.Work
	for e.Due() && e.Collect(&work) {
		e.RunCalls(&work)
		for _, w := range work.Writes {
			show(w.Buf)
			w.Conn.Wrote(w.Buf, nil)
		}
	}
	// Output:
	// SETTINGS
	// WINDOW_UPDATE
	// SETTINGS
	// HEADERS 200 Thu, 01 Jan 1970 00:00:00 GMT
	// DATA "GET /version", end true
}

func show(out []byte) {
	framer := http2.NewFramer(nil, bytes.NewReader(out))
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for f, err := framer.ReadFrame(); err == nil; f, err = framer.ReadFrame() {
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			fmt.Println("HEADERS", f.PseudoValue("status"), f.RegularFields()[0].Value)
		case *http2.DataFrame:
			fmt.Printf("DATA %q, end %v\n", f.Data(), f.StreamEnded())
		default:
			fmt.Println(f.Header().Type)
		}
	}
}
