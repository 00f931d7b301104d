package extension_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestWebSocketEcho(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	dialer := websocket.Dialer{TLSClientConfig: s.TLS(), Subprotocols: []string{"base64url.bearer.authorization.k8s.io.dG9rZW4", "v5.channel.k8s.io"}}
	dialer.TLSClientConfig.NextProtos = nil
	ws, res, err := dialer.DialContext(t.Context(), "wss://"+s.Addr()+widgets+"/w/vnc", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if got := res.Header.Get("Sec-WebSocket-Protocol"); got != "v5.channel.k8s.io" {
		t.Errorf("subprotocol %q", got)
	}
	for _, want := range []string{"one", strings.Repeat("two", 10_000)} {
		must.Do(t, ws.WriteMessage(websocket.BinaryMessage, []byte(want)))
		kind, got, err := ws.ReadMessage()
		if err != nil || kind != websocket.BinaryMessage || string(got) != want {
			t.Fatalf("message %d %.20q: %v", kind, got, err)
		}
	}
	s.Close() // ends it
	if _, _, err := ws.ReadMessage(); err == nil {
		t.Error("the connection is open after Close")
	}
}

// Bytes after an unexpected 101 are recorded.
func TestBytesAfterUnasked101(t *testing.T) {
	s := extension.Start(t, extension.Config{})
	must.Do(t, s.Set(extension.Fault{Kind: extension.Unasked101, Text: "something-else"}))
	conn := dialH1(t, s)
	_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("Upgrade") != "something-else" {
		t.Fatalf("got %v, %v", res, err)
	}
	_, _ = io.WriteString(conn, "smuggled\r\n")
	_, _ = io.ReadAll(conn)
	if rec := s.Requests(0); len(rec) != 2 || rec[1].Method != "AFTER-101" || rec[1].Target != "smuggled\r\n" {
		t.Errorf("recorded %+v", rec)
	}
}
