package proxy

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// forward forwards a request that does not go frame by frame.
func (x *exchange) forward(w http.ResponseWriter, r *http.Request) {
	d := &x.decision
	// A load balancer's probe may share its address with a client that gives requests up. The relay has its own limit.
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
		x.forwardFailed(w, r, backend.Unreachable())
		return
	}
	x.reach()
	x.begin()
	if x.head.Upgrade == "" { // else always over HTTP/1.1
		if err := x.upstream.Learn(r.Context(), d.Timeout); err != nil {
			x.forwardFailed(w, r, err)
			return
		}
	}
	d.Timeout = min(d.Timeout, max(d.Timeout-time.Since(x.head.Arrived), 1)) // it has run since then, as over HTTP/2
	body := &uploaded{ReadCloser: r.Body, w: w}
	defer body.end()
	if r.Body != http.NoBody {
		own := *r
		own.Body, r = io.NopCloser(body), &own
	}
	x.ended = &ended{body: body, offEngine: !x.upstream.HTTP2() || x.head.Upgrade != "", client: r.Context()}
	if x.ended.offEngine {
		x.forwardHTTP1(w, r, body, from) //nolint:contextcheck // as below
	} else {
		x.carry(w, r, from) //nolint:contextcheck // a span has its own
	}
	body.answered = true
}

func (x *exchange) forwardHTTP1(w http.ResponseWriter, r *http.Request, body *uploaded, from bound.Source) {
	d := &x.decision
	end, err := x.hold(w, r, from)
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	defer end()
	// A stranger can make such a request last for all of its time, by sending its body slowly or by not reading the
	// answer. It counts with the long-running ones: all clients behind a load balancer share an address, and the places
	// of short requests are those with which their new tokens are proven.
	x.held.slow = strangersTime(d) != 0 && (x.upstream.Streams(r) || d.Credentials.Impersonates ||
		max(len(x.head.Method), len(x.head.Path)+len(x.head.RawQuery)) > maxEchoed)
	if err := x.p.enter(&x.held, d, x.upstream, from); err != nil {
		x.noPlace(w, r, err)
		return
	}
	defer x.held.leave()
	if x.head.Upgrade != "" || d.LongRunning && d.Action == ToRemote { // it has a connection to its backend for itself
		session, ok := x.p.sessionPlaces.Take(from, 1, int64(x.p.cfg.MaxSessions))
		if !ok {
			x.upstream.Refuse(from, true)
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
	var returned sync.Once // as in carry
	defer returned.Do(func() {})
	over := func() {
		// A Read in progress ends, too: net/http cancels no request before (persistConn.mapRoundTripError).
		if body.ReadCloser != http.NoBody && !body.ended.Load() {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
		x.p.hasten(w)
	}
	defer context.AfterFunc(r.Context(), func() { returned.Do(over) })()
	x.ask(w, r)
}

// unreadRest is how long a client may leave a response unread after its request's time: a watch still ends cleanly.
const unreadRest = 5 * time.Second

// hasten ends a write that takes too long when the request's time is over, or its stream was ended
// (for memory, in a drain): a client that reads nothing would keep the request's place for ever.
func (p *Proxy) hasten(w http.ResponseWriter) {
	// An error means that the client has gone.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.unreadRest))
}

// upstream returns a forwarded request's upstream; nil if its APIService is gone. relayed is the health relay's.
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
	redirects := x.p.rejects(res.StatusCode, strings.Join(res.Header["Location"], "") != "") // any, as in the engine
	err = d.clean(res.Header)
	if d.Action == ToLocal {
		x.p.cfg.Authn.Seen(&d.Credentials, res.StatusCode)
	} else if redirects {
		err = errRedirect(d.Entry.Name)
	}
	if err != nil {
		_ = res.Body.Close() // the body is not needed
		x.forwardFailed(w, r, err)
		return
	}
	x.endCleanly(r.Context(), res)
	x.relay(w, res)
}

// outgoing returns the HTTP/1.1 request without its body and trailers: the client's target byte for
// byte, its fields that are not stripped, and ours.
func outgoing(r *http.Request, x *exchange, host string) *http.Request {
	out := &http.Request{
		Method: r.Method, URL: targetURL(x.head), Host: host, Header: r.Header.Clone(), Body: http.NoBody,
		ProtoMajor: 1, ProtoMinor: 1,
	}
	remove, set := x.sends(x.removes)
	maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return remove(strings.ToLower(name)) })
	out.Header.Del("Expect") // a promise of one hop
	for _, f := range set {
		out.Header.Add(f.Name, f.Value)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // else net/http sets its own
	}
	return out
}

// host returns the backend's Host. Empty means its own address, as kube-aggregator sends to remotes (newReq.Host in
// k8s.io/apiserver/pkg/util/proxy): behind a shared ingress the client could else choose the virtual host, with our
// certificate. The local apiserver gets the client's Host, as without a proxy, and passes it on to pods and services.
func (d *Decision) host(h *Head) string {
	if d.Action == ToLocal && httpguts.ValidHostHeader(h.Authority) {
		return h.Authority
	}
	return ""
}

// targetURL returns a URL with the client's request target, byte for byte. An opaque part is not escaped again, and the
// query is kept even if it does not parse (upstream decodes and re-encodes both).
func targetURL(h *Head) *url.URL {
	u := &url.URL{Scheme: "https", RawQuery: h.RawQuery, ForceQuery: strings.HasSuffix(h.Target(), "?")}
	if strings.HasPrefix(h.Path, "//") { // as an opaque part it would be parsed as an authority
		u.RawPath = h.Path
		u.Path, _ = url.PathUnescape(h.Path) // it was parsed before
		return u
	}
	u.Opaque = h.Path
	return u
}

// localPool returns the local apiserver's pool for credentials, and zero for a remote's.
func localPool(p authn.Pool) backend.Pool {
	return [...]backend.Pool{
		authn.PoolCertificate: backend.PoolCertificate,
		authn.PoolImpersonate: backend.PoolCertificate, // only one of the two is in use
		authn.PoolProven:      backend.PoolProven,
		authn.PoolUnproven:    backend.PoolUnproven,
	}[p]
}

func (x *exchange) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	client := cmp.Or(x.ended, &ended{client: r.Context()}).client // a drain may have ended r's
	// net/http also reports a client as gone if its body did not come in time (errSlowBody, or the request's limit).
	left := errors.Is(r.Context().Err(), context.Canceled) && errors.Is(client.Err(), context.Canceled)
	if left && !errors.As(err, new(*apierrors.StatusError)) {
		// The client has gone, so nothing is sent. The recorder counts it as 499.
		panic(http.ErrAbortHandler)
	}
	x.p.log.Debug("forwarding", "apiservice", x.decision.name(), "audit", x.auditID, "err", err)
	x.p.writeError(w, r, x.decision.failure(err))
	x.ended = cmp.Or(x.ended, &ended{body: new(uploaded), offEngine: true}) // it did not get as far as to be sent
	x.ended.broke(reasonOf(err))
}

const (
	maxUpgradeHead = 1 << 20 // bounds the response head of an upgrade: net/http's own default for servers
	// refusalTimeout limits the wait for each part of a response that is no 101: kube-apiserver's
	// for the whole. It cuts long lists, which the local apiserver answers whatever the Upgrade.
	refusalTimeout = 10 * time.Second
	// answerTime limits the wait for the response head. net/http no longer notices that a client has left once that
	// has sent a byte for the tunnel. A kubelet asks its runtime first, for at most 2 min (--runtime-request-timeout).
	answerTime = 5 * time.Minute
	// halfOpen is how long one direction of a session may go on after the other has ended: a client
	// that has left looks like one that only sends no more. kube-apiserver ends both at once.
	halfOpen = time.Minute
)

var (
	errNoUpgrade = badResponse("it does not switch protocols as HTTP/1.1 says")
	errLongHead  = errors.New("the head is too long")
)

// upgrade carries SPDY and WebSocket over its own HTTP/1.1 connection. What the client sends after its head reaches the
// backend only after a 101 for the same protocol; any other response ends both connections (CVE-2018-1002105).
func (x *exchange) upgrade(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		x.p.writeError(w, r, errTooLong)
		return
	}
	x.noteSent()
	conn, err := x.upstream.DialUpgrade(r.Context(), x.stay)
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	x.ended.at(conn.Address())
	closeConn := func() { _ = conn.Close() }
	defer closeConn()
	ctx, cancel := context.WithTimeout(r.Context(), x.p.answerTime)
	stop := context.AfterFunc(ctx, closeConn)
	res, br, err := switchProtocols(conn, upgradeRequest(r, x, conn.Host())) //nolint:contextcheck // r carries it
	if !stop() && (err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded)) {
		err = ctx.Err()
	}
	cancel()
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	switched := res.StatusCode == http.StatusSwitchingProtocols
	same := strings.EqualFold(res.Header.Get("Upgrade"), x.head.Upgrade) &&
		httpguts.HeaderValuesContainsToken(res.Header["Connection"], "upgrade")
	err = x.decision.clean(res.Header)
	switch own := x.p.rejectedOwn(&x.decision, res.StatusCode); {
	case own != nil:
		err = own
	case err != nil:
	case switched && !same:
		err = errNoUpgrade
	case !switched && x.decision.Action == ToRemote && res.StatusCode < http.StatusBadRequest:
		// CVE-2020-8559: a remote's redirect would send the client and its credentials elsewhere.
		err = errNotSwitched(x.decision.name(), res.StatusCode)
	}
	if err != nil {
		x.forwardFailed(w, r, err)
		return
	}
	if !switched {
		defer context.AfterFunc(r.Context(), closeConn)()
		res.Body = &refusal{res.Body, conn, func() { x.p.hasten(w) }}
		x.relay(w, res) // after which neither connection is used
		return
	}
	res.Header.Set("Connection", "Upgrade")
	res.Header.Set("Upgrade", x.head.Upgrade)
	if limit := strangersTime(&x.decision); limit > 0 {
		defer time.AfterFunc(limit, func() { x.ended.broke(engine.ReasonDeadline); closeConn() }).Stop()
	}
	x.tunnel(w, res.Header, conn, br)
}

// upgradeRequest returns the request for a backend with its own host: one head, no body.
func upgradeRequest(r *http.Request, x *exchange, host string) *http.Request {
	out := outgoing(r, x, cmp.Or(x.decision.host(x.head), host))
	if pool := x.decision.Pool; pool != authn.PoolProven && pool != authn.PoolUnproven {
		const name = "Sec-Websocket-Protocol"
		kept := out.Header[name][:0]
		for _, line := range out.Header[name] {
			if line = authn.CutProtocol(line); line != "" {
				kept = append(kept, line)
			}
		}
		out.Header[name] = kept
	}
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", x.head.Upgrade)
	return out
}

// switchProtocols sends the head and reads the final response. The reader holds what has come after its head.
func switchProtocols(conn *backend.Conn, out *http.Request) (*http.Response, *bufio.Reader, error) {
	if err := out.Write(conn); err != nil {
		return nil, nil, conn.Failed(fmt.Errorf("sending upgrade request: %w", err))
	}
	limit := &io.LimitedReader{R: conn, N: maxUpgradeHead}
	br := bufio.NewReader(limit)
	for range maxInterims {
		res, err := http.ReadResponse(br, out)
		if err != nil {
			if limit.N == 0 {
				err = errLongHead // it looks like the end of the connection
			}
			return nil, nil, conn.Failed(fmt.Errorf("reading upgrade response: %w", err))
		}
		if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			limit.N = 1<<63 - 1
			return res, br, nil
		}
		if res.StatusCode < http.StatusContinue {
			break // no interim head: the names of another would not be counted
		}
	}
	return nil, nil, errNoUpgrade
}

// refusal is the body of a response that is no 101.
type refusal struct {
	io.ReadCloser
	conn   net.Conn
	hasten func() // limits how long the client may leave what was read unread
}

func (b *refusal) Read(p []byte) (int, error) {
	defer b.hasten()
	_ = b.conn.SetReadDeadline(time.Now().Add(refusalTimeout)) // the Read has its error
	return b.ReadCloser.Read(p)                                //nolint:wrapcheck // io.EOF must stay unwrapped
}

// tunnel copies in both directions until both have ended or one has failed, or the second has not
// ended in time. w's Hijack is recorder.Hijack, which records the 101.
func (x *exchange) tunnel(w http.ResponseWriter, fields http.Header, conn net.Conn, br *bufio.Reader) {
	client, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		x.p.log.Error("taking over a client's connection", "err", err)
		panic(http.ErrAbortHandler)
	}
	over := func() {
		_ = client.Close()
		_ = conn.Close()
	}
	defer over()
	x.p.sessions.open.Add(1)
	defer x.p.sessions.open.Add(-1)
	defer context.AfterFunc(x.p.sessions.ending, func() { x.ended.broke(engine.ReasonDrain); over() })()
	// Not the backend's own head: net/http adds a length to that of a POST.
	head := http.Response{StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1, Header: fields}
	// The server's deadlines would end the session.
	if client.SetDeadline(time.Time{}) != nil || head.Write(rw) != nil || rw.Flush() != nil {
		return
	}
	ended := make(chan error, 2)
	go func() { ended <- x.ended.pump(conn, rw, &x.ended.up) }() // ends when either connection is closed
	go func() { ended <- x.ended.pump(client, br, &x.ended.down) }()
	if err := <-ended; err != nil {
		over()
	}
	defer time.AfterFunc(x.p.halfOpen, over).Stop()
	<-ended //nolint:errcheck // however it ended
}

// pump copies until the source ends. Then it closes the destination for writing; the other direction continues.
func (e *ended) pump(dst net.Conn, src io.Reader, count *int64) (err error) {
	// A record of TLS at a time (RFC 8446 §5.1): a buffer's WriteTo has 4 KiB, each a record and a system call again.
	if *count, err = io.CopyBuffer(dst, struct{ io.Reader }{src}, make([]byte, 16<<10)); err != nil {
		if count == &e.up { // a backend that has gone may have left last words before, such as an exit code
			_, err = io.Copy(io.Discard, src)
		}
		return err
	}
	e.first.CompareAndSwap(nil, count)
	if half, ok := dst.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return dst.Close()
}
