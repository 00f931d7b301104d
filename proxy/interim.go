package proxy

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
)

// maxHints is how many 1xx heads of one response are passed on: as many as the engine lets through. net/http counts none that
// somebody takes.
const maxHints = 16

var errHints = errors.New("backend does not stop sending interim responses")

// hints passes 1xx heads on while its request is under way. net/http reads them on a goroutine of the backend's connection, which goes on
// when the request has ended: what comes then must touch neither the header of what is answered instead nor the client's
// connection, whose next response may have begun.
type hints struct {
	mu   sync.Mutex // guards what follows, and w until over
	w    http.ResponseWriter
	n    int
	over bool
}

// relayInterims has 1xx heads passed on until end is called, which must be before the response is.
func relayInterims(ctx context.Context, w http.ResponseWriter) (relayed context.Context, end func()) {
	h := &hints{w: w}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: h.relay}), h.end
}

func (h *hints) relay(code int, header textproto.MIMEHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return nil
	}
	if h.n++; h.n > maxHints {
		return errHints
	}
	// The final head gets nothing of it, and keeps what it has: the end of the connection, say.
	to := h.w.Header()
	own := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	h.w.WriteHeader(code)
	clear(to)
	maps.Copy(to, own)
	return nil
}

func (h *hints) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}
