package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// hopByHop reports whether a field (name in lower case) concerns a single connection (RFC 9110
// §7.6.1). Such a field is forwarded in neither direction.
func hopByHop(name string) bool {
	switch name {
	case "te", "trailer", "proxy-authenticate", "http2-settings":
		return true
	}
	return wire.ConnectionSpecific(name)
}

// crossOrigin reports whether a field lets pages of other origins read a response. An extension
// server must not decide who may read the cluster's API from a browser; upstream drops these
// fields, too.
func crossOrigin(name string) bool {
	switch name {
	case "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin":
		return true
	}
	return false
}

// withholds reports whether a field of the backend's response is not forwarded: in an interim head,
// the final head, a trailer, a 101, or a refused upgrade.
func (d *Decision) withholds(name string) bool {
	return hopByHop(name) || d.Action == ToRemote && crossOrigin(name)
}

// clean removes such fields from a header or trailer that net/http has read.
func (d *Decision) clean(header http.Header) error {
	names, ok := listed(header["Connection"])
	if !ok || len(header) > wire.MaxNames {
		return errManyFields
	}
	for name := range header {
		if lower := strings.ToLower(name); d.withholds(lower) || names[lower] {
			delete(header, name)
		}
	}
	return nil
}

var errManyFields = fmt.Errorf("%w: too many names of fields", backend.ErrBadResponse)

// rejects reports whether a remote's response is a redirect that must not reach the client: as in
// kube-apiserver (UpgradeAwareHandler), any 3xx with a Location.
func (p *Proxy) rejects(status int, leads bool) bool {
	return !p.cfg.ForwardRedirects && leads && status/100 == 3
}

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

// browsers sets the fields of kube-apiserver's filters WithCORS and WithHSTS
// (k8s.io/apiserver/pkg/server/filters) on all answers but the local apiserver's, which has filters
// of its own. The filters themselves would link flow control.
type browsers struct {
	origins []*regexp.Regexp // those whose pages may read answers
	hsts    string           // empty means none
}

func newBrowsers(origins, hsts []string) (b browsers, err error) {
	b.hsts = strings.Join(hsts, "; ")
	for _, o := range origins {
		re, err := regexp.Compile(o)
		if err != nil {
			return b, fmt.Errorf("reading allowed origins: %w", err)
		}
		b.origins = append(b.origins, re)
	}
	return b, nil
}

// concern reports whether a head may be of a page of another origin. Such a request goes to
// Proxy.ServeHTTP: matching what a stranger sent takes too long for the loop.
func (b *browsers) concern(h *Head) bool { return len(b.origins) > 0 && h.get("origin") != "" }

// maxOrigin is more than a scheme, a host of 253 bytes, and a port: matching takes long.
const maxOrigin = 512

func (b *browsers) allow(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	return origin != "" && len(origin) <= maxOrigin && slices.ContainsFunc(b.origins, func(re *regexp.Regexp) bool { return re.MatchString(origin) })
}

// sign sets the fields with kube-apiserver's values.
func (b *browsers) sign(h http.Header, r *http.Request) {
	if b.hsts != "" && h["Strict-Transport-Security"] == nil {
		h.Set("Strict-Transport-Security", b.hsts)
	}
	if b.allow(r) {
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
		h.Set("Access-Control-Expose-Headers", "Date")
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}
