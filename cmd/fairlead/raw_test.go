package main

import (
	"bytes"
	"crypto/tls"
	"io"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

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
	conn := must.Get(tls.Dial("tcp", address, c))(t)
	t.Cleanup(func() { _ = conn.Close() })
	r := &rawClient{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	r.enc = hpack.NewEncoder(&r.block)
	must.Get(io.WriteString(conn, http2.ClientPreface))(t)
	must.Do(t, r.WriteSettings())
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
