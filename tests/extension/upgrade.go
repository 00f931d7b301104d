package extension

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gorilla/websocket"
	"github.com/moby/spdystream"
)

const (
	// maxMessage is the largest WebSocket message that is echoed.
	maxMessage = 1 << 20
	// maxSPDYStreams is how many streams a SPDY connection may open: exec uses five, port-forward
	// two per connection.
	maxSPDYStreams = 256
	// tokenProtocol is how browsers and Kubernetes clients carry a bearer token: it must never be
	// chosen.
	tokenProtocol = "base64url.bearer.authorization.k8s.io."
)

// connect answers a connect subresource: with an upgrade it echoes what comes, without one the
// body.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, subresource string) {
	if !slices.Contains(connectSubresources(), subresource) {
		writeStatus(w, http.StatusNotFound, "no such subresource")
		return
	}
	upgrade := r.Header.Get("Upgrade")
	switch {
	case upgrade == "":
		echo(w, r)
	case strings.EqualFold(upgrade, "websocket"):
		s.echoWebSocket(w, r)
	case strings.EqualFold(upgrade, "SPDY/3.1"):
		s.echoSPDY(w, r)
	default:
		s.echoRaw(w, r, upgrade)
	}
}

// echo sends the body back as it comes, and the trailers behind it.
func echo(w http.ResponseWriter, r *http.Request) {
	controller := http.NewResponseController(w)
	_ = controller.EnableFullDuplex() // HTTP/1.1 would read the whole body first; not supported means not needed
	w.Header().Set("Content-Type", "application/octet-stream")
	if ct := r.Header.Get("Content-Type"); ct != "" {
		w.Header().Set("Content-Type", ct)
	}
	if r.ContentLength > 0 {
		w.Header().Set("X-Content-Length", fmt.Sprint(r.ContentLength))
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = controller.Flush()
		}
		if err != nil {
			break
		}
	}
	for name, values := range r.Trailer {
		for _, v := range values {
			w.Header().Add(http.TrailerPrefix+name, v)
		}
	}
}

func (s *Server) echoWebSocket(w http.ResponseWriter, r *http.Request) {
	header := http.Header{}
	for _, protocol := range websocket.Subprotocols(r) {
		if !strings.HasPrefix(protocol, tokenProtocol) {
			header.Set("Sec-WebSocket-Protocol", protocol)
			break
		}
	}
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	ws, err := upgrader.Upgrade(w, r, header)
	if err != nil {
		return // answered by the library
	}
	note(w)
	defer ws.Close()
	defer s.upgraded(ws.NetConn())()
	ws.SetReadLimit(maxMessage)
	for {
		kind, message, err := ws.ReadMessage()
		if err != nil || ws.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func (s *Server) echoSPDY(w http.ResponseWriter, r *http.Request) {
	if protocols := r.Header.Values("X-Stream-Protocol-Version"); len(protocols) > 0 {
		w.Header().Set("X-Stream-Protocol-Version", protocols[0])
	}
	conn, ok := switchProtocols(w, "SPDY/3.1")
	if !ok {
		return
	}
	defer conn.Close()
	defer s.upgraded(conn)()
	spdy, err := spdystream.NewConnection(conn, true)
	if err != nil {
		return
	}
	var open atomic.Int64
	spdy.Serve(func(stream *spdystream.Stream) {
		if open.Add(1) > maxSPDYStreams {
			open.Add(-1)
			_ = stream.Refuse()
			return
		}
		_ = stream.SendReply(http.Header{}, false)
		s.wg.Go(func() { // ends with the stream, and that with the connection
			defer open.Add(-1)
			_, _ = io.Copy(stream, stream)
			_ = stream.Close()
		})
	})
}

// echoRaw speaks no protocol at all: bytes come back as they are.
func (s *Server) echoRaw(w http.ResponseWriter, _ *http.Request, protocol string) {
	conn, ok := switchProtocols(w, protocol)
	if !ok {
		return
	}
	defer conn.Close()
	defer s.upgraded(conn)()
	_, _ = io.Copy(conn, conn)
}

// switchProtocols answers 101. What the client has sent already comes first out of the returned
// connection.
func switchProtocols(w http.ResponseWriter, protocol string) (net.Conn, bool) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeStatus(w, http.StatusBadRequest, "no upgrade on this protocol")
		return nil, false
	}
	note(w)
	head := http.Header{}
	if v := w.Header().Get("X-Stream-Protocol-Version"); v != "" {
		head.Set("X-Stream-Protocol-Version", v)
	}
	head.Set("Connection", "Upgrade")
	head.Set("Upgrade", protocol)
	_, _ = io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\n")
	_ = head.Write(rw)
	_, _ = io.WriteString(rw, "\r\n")
	if rw.Flush() != nil {
		conn.Close()
		return nil, false
	}
	return &buffered{Conn: conn, r: rw.Reader}, true
}

// buffered reads what the HTTP server had read ahead first.
type buffered struct {
	net.Conn
	r io.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// upgraded counts an upgraded connection and closes it with the server; the caller defers what it
// returns.
func (s *Server) upgraded(conn net.Conn) func() {
	s.stats.upgraded.Add(1)
	done := make(chan struct{})
	s.wg.Go(func() {
		select {
		case <-s.ctx.Done():
			conn.Close()
		case <-done:
		}
	})
	return func() {
		close(done)
		s.stats.upgraded.Add(-1)
	}
}

// note records the 101 that does not pass through WriteHeader.
func note(w http.ResponseWriter) {
	if a, ok := w.(*answer); ok {
		a.status = http.StatusSwitchingProtocols
	}
}
