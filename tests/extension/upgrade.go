package extension

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gorilla/websocket"
)

const (
	// maxMessage limits an echoed WebSocket message.
	maxMessage = 1 << 20
	// tokenProtocol carries a bearer token of browsers and Kubernetes clients: it must never be
	// chosen.
	tokenProtocol = "base64url.bearer.authorization.k8s.io."
)

// connect answers a connect subresource: it echoes a WebSocket's messages, or the body.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, subresource string) {
	if !slices.Contains(connectSubresources(), subresource) {
		writeStatus(w, http.StatusNotFound, "no such subresource")
		return
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		s.echoWebSocket(w, r)
		return
	}
	echo(w, r)
}

// echo streams the body and its trailers back.
func echo(w http.ResponseWriter, r *http.Request) {
	controller := http.NewResponseController(w)
	_ = controller.EnableFullDuplex() // HTTP/1.1 reads the whole body first by default; HTTP/2 does not support this, or need it
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
		return // the library has answered
	}
	if a, ok := w.(*answer); ok {
		a.status = http.StatusSwitchingProtocols // the library does not call WriteHeader
	}
	defer ws.Close()
	defer context.AfterFunc(s.ctx, func() { _ = ws.NetConn().Close() })()
	ws.SetReadLimit(maxMessage)
	for {
		kind, message, err := ws.ReadMessage()
		if err != nil || ws.WriteMessage(kind, message) != nil {
			return
		}
	}
}
