package proxy

import (
	"errors"
	"maps"
	"net/http"
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
	d    *Decision
	n    int
	over bool
}

// interimsOf passes 1xx heads on until its caller calls end, which must be before the response is
// written. An HTTP/1.0 client gets none: it would take the first one for the response (RFC 9110
// §15.2). Nor does a client to which net/http writes 100 Continue when the body is read, which may
// be within other output.
func interimsOf(r *http.Request, w http.ResponseWriter, d *Decision) *interims {
	return &interims{w: w, d: d, over: !r.ProtoAtLeast(1, 1) || expects(r)}
}

// expects reports whether net/http's server, or the engine's for a handler, answers an expectation.
func expects(r *http.Request) bool {
	return httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue")
}

// relay passes on what a backend says about its response. 100 Continue is about the next hop.
func (h *interims) relay(code int, header textproto.MIMEHeader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n++; h.n > maxInterims {
		return errInterims
	}
	if err := h.d.clean(http.Header(header)); err != nil || h.over || code == http.StatusContinue {
		return err
	}
	to := h.w.Header() // which must not change the final head
	own := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	h.w.WriteHeader(code)
	clear(to)
	maps.Copy(to, own)
	return nil
}

func (h *interims) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}
