package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever is in a head, its decision and its cleaning cost in proportion to its size. So does a
// whole request over HTTP/1.1, with an answer.
func TestInProportion(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	w := newWorld(t, worldConfig{})
	var conn net.Conn
	var read *bufio.Reader
	connect := func() {
		conn = w.dial(t, w.front, nil)
		must.Do(t, conn.SetDeadline(time.Time{})) // all rows together take long
		read = bufio.NewReader(conn)
	}
	connect()
	var rows []proportion.Row
	for _, s := range proportion.Heads() {
		rows = append(rows, proportion.Row{Name: "decided: " + s.Name, N: s.Small, Of: func(n int) (int, func() any) {
			made := s.Of(remoteGV+"/widgets", n)
			return made.Size(), func() any {
				h := &Head{Head: wire.Head{Method: "GET", Fields: made.Fields}, RemoteIP: "192.0.2.1", Remote: "192.0.2.1:1"}
				h.SetTarget(made.Path)
				h.Fields = append([]hpack.HeaderField{{Name: "authorization", Value: "Bearer token-of-bob"}}, h.Fields...)
				d, _ := p.decision(t.Context(), h, &authn.Conn{}, true)
				x := &exchange{p: p, head: h, decision: d}
				for _, f := range h.Fields {
					x.removes(f.Name)
				}
				return d
			}
		}}, proportion.Row{Name: "over HTTP/1.1: " + s.Name, N: s.Small, Of: func(n int) (int, func() any) {
			made := s.Of(remoteGV+"/widgets", n)
			var b bytes.Buffer
			fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: x\r\n", made.Path)
			for _, f := range made.Fields {
				fmt.Fprintf(&b, "%s: %s\r\n", f.Name, f.Value)
			}
			b.WriteString("Authorization: Bearer token-of-bob\r\n\r\n")
			return b.Len(), func() any {
				must.Get(conn.Write(b.Bytes()))(t)
				res := must.Get(http.ReadResponse(read, nil))(t)
				must.Get(io.Copy(io.Discard, res.Body))(t)
				if res.Close {
					conn.Close()
					connect()
				}
				return nil
			}
		}})
	}
	proportion.Check(t, rows...)
}
