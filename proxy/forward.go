package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
)

// forward carries a request out that has not come frame by frame.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, x *exchange) {
	d := &x.decision
	// A load balancer's probe may come from the address that gives up: its relay has a bound of its own.
	if !x.relayed && p.givenUp.owes(d, x.head) {
		p.givenUp.refused.Inc()
		p.writeError(w, r, errGivenUp())
		return
	}
	from := d.source(x.head)
	if err := p.prove(r.Context(), d, from); err != nil {
		p.forwardFailed(w, r, err)
		return
	}
	if x.upstream = p.upstream(d, x.relayed); x.upstream == nil {
		p.forwardFailed(w, r, backend.ErrUnreachable)
		return
	}
	if err := p.learn(r, x); err != nil {
		p.forwardFailed(w, r, err)
		return
	}
	body, r := lend(w, r)
	defer body.end()
	if x.upstream.HTTP2() && x.head.Upgrade == "" {
		p.carry(w, r, x, from) //nolint:contextcheck // a span has its own
	} else {
		p.beside(w, r, x, body)
	}
	body.answered = true
}

// beside forwards a request over HTTP/1.1.
func (p *Proxy) beside(w http.ResponseWriter, r *http.Request, x *exchange, body *uploaded) {
	d := &x.decision
	from := d.source(x.head)
	if d.Timeout > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), d.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	end, err := p.hold(w, r, x, from)
	if err != nil {
		p.forwardFailed(w, r, err)
		return
	}
	defer end()
	if err := p.enter(&x.held, d, x.upstream, from); err != nil {
		p.noPlace(w, r, x, err)
		return
	}
	defer x.held.leave()
	r, cancel := p.within(r, x)
	defer cancel()
	if x.head.Upgrade != "" {
		p.upgrade(w, r, x)
		return
	}
	defer context.AfterFunc(r.Context(), body.cut)() //nolint:contextcheck // it needs none
	p.ask(w, r, x)                                   //nolint:contextcheck // a span has its own
}

// upstream is what carries a forwarded request. Nil: its APIService is gone. relayed says that the health relay asks.
func (p *Proxy) upstream(d *Decision, relayed bool) *backend.Upstream {
	switch {
	case d.Action == ToRemote:
		return p.cfg.Backends.Upstream(d.Entry)
	case d.Action == ToLocal && relayed && d.Pool == authn.PoolUnproven && !d.LongRunning:
		return p.cfg.Local.Upstream(backend.PoolHealth)
	case d.Action == ToLocal:
		return p.cfg.Local.Upstream(localPool(d.Pool))
	}
	return nil
}

// ask has a backend over HTTP/1.1 answer a request that has its place.
func (p *Proxy) ask(w http.ResponseWriter, r *http.Request, x *exchange) {
	d := &x.decision
	out := outgoing(r, x, d.host(x.head))
	out.Body, out.ContentLength = r.Body, r.ContentLength
	if out.Trailer = keptTrailers(r.Trailer, &d.Strip); out.Trailer != nil {
		out.Body = &trailing{r.Body, r.Trailer, out.Trailer}
	}
	ctx, end := relayInterims(r, w)
	res, err := x.upstream.RoundTrip(out.WithContext(ctx), d.LongRunning)
	end()
	if err != nil {
		p.forwardFailed(w, r, err)
		return
	}
	if d.Action == ToLocal {
		p.cfg.Authn.Seen(&d.Credentials, res.StatusCode)
	} else if p.rejects(res.StatusCode) {
		_ = res.Body.Close() // nobody reads it
		p.forwardFailed(w, r, errRedirect(d.Entry.Name))
		return
	}
	p.endCleanly(res, d, &x.events)
	d.clean(res.Header)
	p.relay(w, res)
	d.clean(w.Header()) // it holds the trailers, which go out now
}

// outgoing is the request over HTTP/1.1, without its body: the same target bytes, the client's fields less what is stripped, then ours.
func outgoing(r *http.Request, x *exchange, host string) *http.Request {
	out := &http.Request{Method: r.Method, URL: targetURL(x.head), Host: host, Header: r.Header.Clone(), Body: http.NoBody, ProtoMajor: 1, ProtoMinor: 1}
	applyFields(out.Header, &x.decision)
	x.follow.propagate(out.Header)
	return out
}

// host is what the backend sees as the host it is asked for. Empty: its own address, as remotes see
// it from kube-aggregator (newReq.Host in k8s.io/apiserver/pkg/util/proxy): behind a name that leads
// to a shared ingress the client would choose the virtual host, over our certificate. The local
// apiserver sees the client's, as if there were nobody between: it passes it on to pods and services.
func (d *Decision) host(h *Head) string {
	if d.Action == ToLocal && httpguts.ValidHostHeader(h.Authority) {
		return h.Authority
	}
	return ""
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

// keptTrailers are the names of the client's announced trailers that may pass, without values.
func keptTrailers(announced http.Header, strip *Strip) http.Header {
	var kept http.Header
	for name := range announced {
		if strip.RemovesTrailer(strings.ToLower(name)) {
			continue
		}
		if kept == nil {
			kept = make(http.Header, len(announced))
		}
		kept[name] = nil
	}
	return kept
}

// trailing gives the names their values when the body has ended. It leaves alone what was not
// announced: over HTTP/1.1 the server puts that into the same map.
type trailing struct {
	io.ReadCloser
	from, to http.Header
}

func (b *trailing) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name := range b.to {
			b.to[name] = b.from[name]
		}
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
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

func (p *Proxy) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	// net/http takes a client for gone, too, whose body did not come in time (errSlowBody).
	if errors.Is(r.Context().Err(), context.Canceled) && p.ending.Err() == nil && !errors.As(err, new(*apierrors.StatusError)) {
		// The client has gone; nobody reads an answer. The recorder counts it as 499.
		panic(http.ErrAbortHandler)
	}
	name := x.decision.name()
	p.log.Debug("forwarding", "apiservice", name, "err", err)
	p.writeError(w, r, forwardError(name, err))
}

// buffers are for copying responses. 32 KiB is httputil.ReverseProxy's size.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
