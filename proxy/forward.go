package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
)

// forward carries a request out on the net/http lane.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, x *exchange) {
	d := &x.decision
	if p.givenUp.owes(d, x.head) {
		p.givenUp.refused.Inc()
		if r.ProtoMajor == 2 {
			w.Header().Set("Connection", "close") // net/http makes a GOAWAY of it, after which what comes on the connection costs it little
		}
		p.writeError(w, r, errGivenUp())
		return
	}
	x.upstream = p.upstream(d)
	held, err := p.enter(d, x.upstream)
	if err != nil {
		p.writeError(w, r, err)
		return
	}
	defer held.leave()
	if x.head.Upgrade != "" {
		p.upgrade(w, r, x)
		return
	}
	if d.LongRunning {
		var cancel context.CancelFunc
		r, cancel = p.endable(r)
		defer cancel()
	}
	if d.Timeout > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), d.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	p.reverse.ServeHTTP(w, r)
}

// upstream is what carries a forwarded request. Nil: its APIService is gone.
func (p *Proxy) upstream(d *Decision) *backend.Upstream {
	switch d.Action {
	case ToRemote:
		return p.cfg.Backends.Upstream(d.Entry)
	case ToLocal:
		return p.cfg.Local.Upstream(localPool(d.Pool))
	}
	return nil
}

func (p *Proxy) newReverse() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      roundTripper(p.roundTrip),
		ModifyResponse: p.checkResponse,
		ErrorHandler:   p.forwardFailed,
		ErrorLog:       slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		BufferPool:     newBuffers(),
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rewrite makes the outgoing request: the same target bytes, the client's fields less what is stripped, then ours.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	d := &x.decision
	pr.Out.URL = targetURL(x.head)
	pr.Out.Host = ""                         // the transport fills in the address
	for name, values := range pr.In.Header { // ReverseProxy has removed what Connection lists
		if personal(strings.ToLower(name)) {
			pr.Out.Header[name] = values
		}
	}
	applyFields(pr.Out.Header, d)
	x.follow.propagate(pr.Out.Header)
	pr.Out.Trailer = keptTrailers(pr.In.Trailer, &d.Strip)
}

// targetURL is a URL whose request target is the client's, byte for byte: an opaque part is not escaped anew, and the query is kept even where it does not
// parse (upstream decodes and re-encodes both).
func targetURL(h *Head) *url.URL {
	u := &url.URL{Scheme: "https", RawQuery: h.RawQuery, ForceQuery: h.HasQuery && h.RawQuery == ""}
	if strings.HasPrefix(h.Path, "//") { // an opaque part that begins so would be taken for an authority
		u.Path, u.RawPath = h.Path, h.Path
		if p, err := url.PathUnescape(h.Path); err == nil {
			u.Path = p
		}
		return u
	}
	u.Opaque = h.Path
	return u
}

func applyFields(header http.Header, d *Decision) {
	for name := range header {
		if d.Strip.Removes(strings.ToLower(name)) {
			delete(header, name)
		}
	}
	if d.Strip.cutsProtocol() {
		cutProtocols(header)
	}
	for _, f := range d.Set {
		header.Del(f.Name)
	}
	for _, f := range d.Set {
		header.Add(f.Name, f.Value)
	}
	if _, ok := header["User-Agent"]; !ok {
		header.Set("User-Agent", "") // or net/http invents one
	}
}

// cutProtocols takes tokens out of every Sec-WebSocket-Protocol line, upgrade or not.
func cutProtocols(header http.Header) {
	const name = "Sec-Websocket-Protocol"
	lines := header[name]
	kept := lines[:0]
	for _, line := range lines {
		if line = authn.CutProtocol(line); line != "" {
			kept = append(kept, line)
		}
	}
	if header[name] = kept; len(kept) == 0 {
		delete(header, name)
	}
}

// keptTrailers is the client's trailer map itself, less the names that are stripped: the server fills it when the body has ended, and fills in only names
// that are still announced.
func keptTrailers(trailer http.Header, strip *Strip) http.Header {
	for name := range trailer {
		if strip.Removes(strings.ToLower(name)) {
			delete(trailer, name)
		}
	}
	if len(trailer) == 0 {
		return nil
	}
	return trailer
}

func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	d := &x.decision
	if d.Action == ToRemote {
		res, err := p.cfg.Backends.RoundTrip(d.Entry, r, d.LongRunning) //nolint:contextcheck // the request carries it
		if err == nil {
			endInTime(r.Context(), res)
		}
		return res, err
	}
	res, err := p.cfg.Local.RoundTrip(r, localPool(d.Pool), d.LongRunning) //nolint:contextcheck // the request carries it
	if err == nil {
		p.cfg.Authn.Seen(&d.Credentials, res.StatusCode)
		endInTime(r.Context(), res)
	}
	return res, err
}

// localPool is the pool that fits credentials; none fits what was meant for a remote.
func localPool(p authn.Pool) backend.Pool {
	switch p {
	case authn.PoolCertificate:
		return backend.PoolCertificate
	case authn.PoolProven:
		return backend.PoolProven
	case authn.PoolUnproven:
		return backend.PoolUnproven
	}
	return 0
}

// crossOrigin reports whether a field (name in lower case) is dropped from a remote's response, as upstream does: an extension server has no say in who may
// read the cluster's API from a browser.
func crossOrigin(name string) bool {
	switch name {
	case "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin":
		return true
	}
	return false
}

func (p *Proxy) checkResponse(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	d := &x.decision
	p.endCleanly(res, d)
	if d.Action != ToRemote {
		return nil
	}
	for name := range res.Header {
		if crossOrigin(strings.ToLower(name)) {
			delete(res.Header, name)
		}
	}
	if p.rejects(res.StatusCode) {
		return errRedirect(d.Entry.Name)
	}
	return nil
}

func (p *Proxy) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	if errors.Is(r.Context().Err(), context.Canceled) && p.ending.Err() == nil {
		// The client has gone; nobody reads an answer. The recorder counts it as 499.
		panic(http.ErrAbortHandler)
	}
	name := x.decision.name()
	p.log.Debug("forwarding", "apiservice", name, "err", err)
	p.writeError(w, r, forwardError(name, err))
}

// buffers are the copy buffers of ReverseProxy. 32 KiB is its own size; without a pool each response allocates one.
type buffers struct{ pool sync.Pool }

func newBuffers() *buffers {
	return &buffers{pool: sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}}
}

func (b *buffers) Get() []byte  { return *b.pool.Get().(*[]byte) }
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// rejects reports whether a remote's response is a redirect that must not reach the client.
func (p *Proxy) rejects(status int) bool {
	if p.cfg.ForwardRedirects {
		return false
	}
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusUseProxy, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusMultipleChoices:
		return true
	}
	return false
}
