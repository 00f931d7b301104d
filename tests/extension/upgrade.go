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
	// maxMessage is the largest WebSocket message that is echoed.
	maxMessage = 1 << 20
	// tokenProtocol is how browsers and Kubernetes clients carry a bearer token: it must never be
	// chosen.
	tokenProtocol = "base64url.bearer.authorization.k8s.io."
)

// connect answers a connect subresource: with a WebSocket it echoes what comes, else the body.
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
	if a, ok := w.(*answer); ok {
		a.status = http.StatusSwitchingProtocols // which does not pass through WriteHeader
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
