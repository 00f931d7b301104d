package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
)

// forward forwards a request that does not go frame by frame.
func (x *exchange) forward(w http.ResponseWriter, r *http.Request) {
	d := &x.decision
	// A load balancer's probe may share its address with a client that gives requests up. The relay
	// has its own limit.
	if !x.relayed && x.p.givenUp.overLimit(d, x.head) {
		x.p.givenUp.refused.Inc()
		x.p.writeError(w, r, errGivenUp)
		return
	}
	from := d.source(x.head)
	if err := x.prove(r.Context(), from); err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	if x.upstream = x.p.upstream(d, x.relayed); x.upstream == nil {
		x.forwardFailed(w, r, backend.ErrUnreachable)
		return
	}
	x.reach()
	if err := x.learn(r); err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	body, r := detachBody(w, r)
	defer body.end()
	x.ended = &ended{body: body, offEngine: !x.upstream.HTTP2() || x.head.Upgrade != ""}
	if x.ended.offEngine {
		x.forwardHTTP1(w, r, body, from)
	} else {
		x.carry(w, r, from) //nolint:contextcheck // a span has its own
	}
	body.answered = true
}

func (x *exchange) forwardHTTP1(w http.ResponseWriter, r *http.Request, body *uploaded, from bound.Source) {
	d := &x.decision
	if x.head.Upgrade != "" {
		// Bytes after the client's head were meant for the tunnel: they must not be read as a
		// request.
		w.Header().Set("Connection", "close")
	}
	if d.Timeout > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), d.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	end, err := x.hold(w, r, from)
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	defer end()
	x.held.slow = lasts(r, x)
	if err := x.p.enter(&x.held, d, x.upstream, from); err != nil {
		x.noPlace(w, r, err)
		return
	}
	defer x.held.leave()
	if x.head.Upgrade != "" || d.LongRunning && d.Action == ToRemote { // it has a connection to its backend for itself
		session, ok := x.p.sessionPlaces.Take(from, 1, int64(x.p.cfg.MaxSessions))
		if !ok {
			x.upstream.Refuse(true)
			x.noPlace(w, r, errBusy("the front door"))
			return
		}
		defer session.Leave()
	}
	r, cancel := x.within(r)
	defer cancel()
	if x.head.Upgrade != "" {
		x.upgrade(w, r)
		return
	}
	defer context.AfterFunc(r.Context(), func() { //nolint:contextcheck // it needs none
		body.cut()
		x.p.hasten(w)
	})()
	x.ask(w, r)
}

// unreadRest is how long a client may leave a response unread after the time of its request, so
// that a watch still ends cleanly.
const unreadRest = 5 * time.Second

// hasten ends a write that takes too long when the request's time is over, or its stream was ended
// (for memory, in a drain): a client that reads nothing would keep the request's place for ever.
func (p *Proxy) hasten(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.unreadRest)) // an error means that the client has gone
}

// upstream returns the upstream of a forwarded request. Nil means that its APIService is gone.
// relayed says that the request is for the health relay.
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

// ask forwards a request over HTTP/1.1 once it holds its place.
func (x *exchange) ask(w http.ResponseWriter, r *http.Request) {
	d := &x.decision
	out := outgoing(r, x, d.host(x.head)) //nolint:contextcheck // a span has its own
	out.Body, out.ContentLength = r.Body, r.ContentLength
	if d.Action == ToLocal && x.upstream.Streams(r) {
		// It ends the connection with a 401, which would be lost while the body is sent.
		out.Header.Set("Expect", "100-continue")
	}
	interims := interimsOf(r, w, d)
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: interims.relay})
	x.noteSent()
	res, err := x.upstream.RoundTrip(out.WithContext(ctx), d.LongRunning, x.stay)
	interims.end()
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	x.ended.at(res.Request.URL.Host)
	if d.Action == ToLocal {
		x.p.cfg.Authn.Seen(&d.Credentials, res.StatusCode)
	} else if x.p.rejects(res.StatusCode, res.Header.Get("Location") != "") {
		_ = res.Body.Close() // the body is not needed
		x.forwardFailed(w, r, errRedirect(d.Entry.Name))
		return
	}
	if err := d.clean(res.Header); err != nil {
		_ = res.Body.Close() // the body is not needed
		x.forwardFailed(w, r, err)
		return
	}
	x.endCleanly(res)
	x.relay(w, res)
}

// outgoing returns the HTTP/1.1 request without its body and trailers: the client's target byte for
// byte, its fields that are not stripped, and ours.
func outgoing(r *http.Request, x *exchange, host string) *http.Request {
	out := &http.Request{Method: r.Method, URL: targetURL(x.head), Host: host, Header: r.Header.Clone(), Body: http.NoBody, ProtoMajor: 1, ProtoMinor: 1}
	for name := range out.Header {
		if x.decision.Strip.Removes(strings.ToLower(name)) {
			delete(out.Header, name)
		}
	}
	out.Header.Del("Expect") // a promise of one hop
	for _, f := range x.decision.Set {
		out.Header.Add(f.Name, f.Value)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // else net/http sets its own
	}
	x.observer.propagate(out.Header)
	return out
}

// host returns the Host that the backend gets. Empty means its own address, as kube-aggregator
// sends to remotes (newReq.Host in k8s.io/apiserver/pkg/util/proxy): if a shared ingress answered
// that address, the client could otherwise choose the virtual host, with our certificate. The local
// apiserver gets the client's Host, as without a proxy: it passes it on to pods and services.
func (d *Decision) host(h *Head) string {
	if d.Action == ToLocal && httpguts.ValidHostHeader(h.Authority) {
		return h.Authority
	}
	return ""
}

// targetURL returns a URL with the client's request target, byte for byte. An opaque part is not
// escaped again, and the query is kept even if it does not parse (upstream decodes and re-encodes
// both).
func targetURL(h *Head) *url.URL {
	u := &url.URL{Scheme: "https", RawQuery: h.RawQuery, ForceQuery: h.HasQuery && h.RawQuery == ""}
	if strings.HasPrefix(h.Path, "//") { // as an opaque part it would be parsed as an authority
		u.Path, u.RawPath = h.Path, h.Path
		if p, err := url.PathUnescape(h.Path); err == nil {
			u.Path = p
		}
		return u
	}
	u.Opaque = h.Path
	return u
}

// localPool returns the local apiserver's pool for credentials, and zero for a remote's.
func localPool(p authn.Pool) backend.Pool {
	switch p {
	case authn.PoolCertificate, authn.PoolImpersonate: // only one of the two is in use
		return backend.PoolCertificate
	case authn.PoolProven:
		return backend.PoolProven
	case authn.PoolUnproven:
		return backend.PoolUnproven
	}
	return 0
}

func (x *exchange) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	// net/http also reports a client as gone if its body did not come in time (errSlowBody).
	if errors.Is(r.Context().Err(), context.Canceled) && x.p.ending.Err() == nil && !errors.As(err, new(*apierrors.StatusError)) {
		// The client has gone, so nothing is sent. The recorder counts it as 499.
		panic(http.ErrAbortHandler)
	}
	x.ended.broke(err)
	name := x.decision.name()
	x.p.log.Debug("forwarding", "apiservice", name, "err", err)
	x.p.writeError(w, r, forwardError(name, err))
}
