package proxy

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"

	"golang.org/x/net/http/httpguts"
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
	// expects says that net/http is to write 100 Continue to the client, when somebody reads the body: perhaps now.
	expects bool
}

// relayInterims has 1xx heads passed on until end is called, which must be before the response is. A client over HTTP/1.0 gets none:
// it would take the first for its answer (RFC 9110 §15.2).
func relayInterims(r *http.Request, w http.ResponseWriter) (relayed context.Context, end func()) {
	h := &hints{w: w, over: !r.ProtoAtLeast(1, 1)}
	h.expects = r.ProtoMajor == 1 && httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue")
	return httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: h.relay}), h.end
}

func (h *hints) relay(code int, header textproto.MIMEHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n++; h.n > maxHints {
		return errHints
	}
	if h.over {
		return nil
	}
	if h.expects && code != http.StatusContinue {
		h.write(http.StatusContinue, nil) // net/http writes none from now on, which else would be amid what follows
	}
	h.expects = false
	h.write(code, header)
	return nil
}

// write leaves the final head nothing of an interim one, and what it has: the end of the connection, say.
func (h *hints) write(code int, header textproto.MIMEHeader) {
	to := h.w.Header()
	own := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	h.w.WriteHeader(code)
	clear(to)
	maps.Copy(to, own)
}

func (h *hints) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}
