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

// maxInterims limits the 1xx heads of a response, like the engine's limit. net/http does not count
// them if a hook takes them.
const maxInterims = 16

var errInterims = errors.New("backend sent too many interim responses")

// interims passes 1xx heads on while its request is in progress. net/http reads them on a goroutine
// of the backend's connection, which may continue after the request has ended. Later heads must
// touch neither the header of another response to the request nor the client's connection, whose
// next response may have begun.
type interims struct {
	mu   sync.Mutex // guards the fields below, and w until over
	w    http.ResponseWriter
	n    int
	over bool
	// expects says that net/http will write 100 Continue to the client when the body is read, which
	// may be now.
	expects bool
}

// relayInterims passes 1xx heads on until its caller calls end, which must be before the response
// is written. An HTTP/1.0 client gets none: it would take the first one for the response (RFC 9110
// §15.2).
func relayInterims(r *http.Request, w http.ResponseWriter) (relayed context.Context, end func()) {
	h := &interims{w: w, over: !r.ProtoAtLeast(1, 1)}
	h.expects = r.ProtoMajor == 1 && httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue")
	return httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: h.relay}), h.end
}

func (h *interims) relay(code int, header textproto.MIMEHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n++; h.n > maxInterims {
		return errInterims
	}
	if h.over {
		return nil
	}
	if h.expects && code != http.StatusContinue {
		h.write(http.StatusContinue, nil) // so that net/http does not write it later, within other output
	}
	h.expects = false
	h.write(code, header)
	return nil
}

// write sends an interim head without changing the final one.
func (h *interims) write(code int, header textproto.MIMEHeader) {
	to := h.w.Header()
	own := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	h.w.WriteHeader(code)
	clear(to)
	maps.Copy(to, own)
}

func (h *interims) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}
