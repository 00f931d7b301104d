package health

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	probeTimeout = 5 * time.Second // the same as kube-aggregator's
	// dialTimeout is the part of probeTimeout that the dial may take. One lost SYN is sent again after 1 s (RFC 6298)
	// and still arrives. A host whose packets vanish is ejected within 2 s (keep-alive) + 0.25 s + 2 s.
	dialTimeout = 2 * time.Second
	// maxBody is how much of a body is drained, so that the backend sees its response read to the end
	// (kubernetes/kubernetes#133644). A document is some 100 KiB at most. A longer body costs only that connection.
	maxBody             = 1 << 20
	maxHead, maxMessage = 64 << 10, 1 << 10 // bound what a backend can make us keep and show
	// perRequest is what a server may send on a connection for each request, of which there is one for each claim, and
	// for a light check (of two intervals at most): a body, and a window of one that is left unread. Each of our writes
	// counts as perWrite: net/http returns 4 KiB of credit or more with one, and answers a PING.
	perRequest, perWrite = 3 * maxBody, 1 << 10
)

func probeURL(e *registry.Entry, address string) *url.URL {
	u := &url.URL{Scheme: "https", Host: address, Path: e.Path()}
	if e.GroupVersion.Empty() {
		u.Path = "/readyz"
	}
	return u
}

// open dials a connection for claims. elapsed is the part of the timeout that is used up already.
func (t *target) open(ctx context.Context, elapsed time.Duration) (f finding) {
	leave, err := t.prober.gate.enter(ctx) // before the timeout: the wait is not the endpoint's fault
	if err != nil {
		return finding{err: err, failures: 1}
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout-elapsed)
	defer cancel()
	start := time.Now()
	trust, err := t.prober.config.TLS(t.key.backend.Owner, t.key.backend)
	if err != nil {
		return finding{err: err, failures: 1}
	}
	d := &dialler{target: t, trust: trust.Clone()}
	conn, err := d.transport().NewClientConn(ctx, "https", t.key.address)
	f = finding{err: err, conn: conn, took: elapsed + time.Since(start)}
	if err != nil {
		late, ok := errors.AsType[net.Error](err)
		f.failures, f.undialled = 1, !d.dialled && !errors.As(err, new(*net.DNSError))
		f.silent = ok && late.Timeout() && (d.dialled || f.undialled)
	}
	return f
}

func (t *target) try(ctx context.Context, c *claim, l *probeConn) finding {
	client := http.Client{
		Transport: l, Timeout: max(probeTimeout-l.took, time.Millisecond), // zero would mean no timeout
		// A redirect is a bad response (kube-aggregator, remote_available_controller.go).
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	start, f := time.Now(), finding{}
	f.latency, f.err = c.get(ctx, func(r *http.Request) (*http.Response, error) {
		resp, err := client.Do(r)
		f.http2 = err == nil && resp.ProtoMajor == 2
		return resp, err
	})
	f.err, f.took = inTime(f.err, f.latency, client.Timeout), l.took+time.Since(start)
	if f.err != nil {
		f.failures, f.undialled, f.silent = max(l.failures, 1), l.undialled, l.silent
	}
	return f
}

// inTime refuses a response that comes as the timeout ends: a handler that waits until we leave may still answer 200.
func inTime(err error, latency, timeout time.Duration) error {
	if err == nil && latency >= timeout {
		return context.DeadlineExceeded
	}
	return err
}

// errUnread is the refusal of a server that accepted us before it restarted, errGone that it has no such group-version.
var errUnread, errGone = errors.New("it has just started, and may not have read its rules yet"), errors.New("404")

// get requests a document, or a server's readiness, and returns how long the head took. A bad response is an error.
func (c *claim) get(ctx context.Context, do func(*http.Request) (*http.Response, error)) (time.Duration, error) {
	config := &c.target.prober.config
	header := http.Header{"X-Remote-User": {"system:kube-aggregator"}, "X-Remote-Group": {"system:masters"}}
	req := &http.Request{Method: http.MethodGet, URL: c.at, Host: reach.Host(c.at.Host), Header: header}
	if config.Authorization != nil {
		req.Header = http.Header{}
		if own := config.Authorization(); own != "" {
			req.Header["Authorization"] = []string{own}
		}
	}
	start := time.Now()
	resp, err := do(req.WithContext(ctx))
	latency := time.Since(start)
	if err != nil {
		return latency, err
	}
	// A body that does not end, or ends badly, is no failure of the endpoint (kube-aggregator does
	// not read it). Closing it unfinished ends the connection or, on HTTP/2, the stream.
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxBody)
		_ = resp.Body.Close()
	}()
	switch code := resp.StatusCode; {
	case code >= http.StatusOK && code < http.StatusMultipleChoices:
		c.accepted.Store(true)
		c.read(resp.Body)
		return latency, nil
	case !c.target.key.server && code == http.StatusNotFound:
		return latency, fmt.Errorf("bad status from %v: %w%s", c.at, errGone, sentence(resp.Body))
	case !c.target.key.server:
		return latency, fmt.Errorf("bad status from %v: %d%s", c.at, code, sentence(resp.Body))
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		until := c.unreadUntil.Load()
		if code == http.StatusForbidden && c.accepted.Load() && until != nil && time.Now().Before(*until) {
			return latency, fmt.Errorf("bad status from %v: %d: %w", c.at, code, errUnread)
		}
		return latency, nil // it refuses us, but it is healthy
	default:
		failing, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage)) // the names of the failing checks
		return latency, fmt.Errorf("bad status from %v: %d: %s", c.at, code, failing)
	}
}

// read notes what a URL serves: whoever writes two may mean two servers.
func (c *claim) read(document io.Reader) {
	if c.target.key.server || c.target.key.backend.URLs == "" {
		return
	}
	var list struct{ Resources []struct{ Name string } }
	if json.NewDecoder(io.LimitReader(document, maxBody)).Decode(&list) != nil {
		return
	}
	names := make([]string, 0, len(list.Resources))
	for _, r := range list.Resources {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	text := fmt.Sprintf("%d resources (%x)", len(names), sum[:4])
	if last := c.serves.Load(); last == nil || last.text != text {
		c.serves.Store(&served{text, time.Now()})
	}
}

// sentence returns what a server says in a Status, after a colon, or nothing.
func sentence(body io.Reader) string {
	var status struct{ Kind, Message string }
	err := json.NewDecoder(io.LimitReader(body, maxHead)).Decode(&status)
	if err != nil || status.Kind != "Status" || status.Message == "" {
		return ""
	}
	return ": " + printable.Line(bounded(status.Message))
}

// dialler dials one connection, with its own handshake: net/http's would panic where nothing recovers.
type dialler struct {
	target  *target
	trust   *tls.Config
	dialled bool
}

// transport returns a new Transport: nothing of an earlier connection may answer for this one.
func (d *dialler) transport() *http.Transport {
	b, trust := d.target.key.backend, d.trust
	trust.ClientSessionCache, trust.NextProtos = nil, nil // a resumed session would not show us the certificate
	trust.ServerName = cmp.Or(trust.ServerName, b.NameAt(d.target.key.address))
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!d.target.key.server) // requests with our certificate go there over HTTP/2 alone
	protocols.SetHTTP2(!b.HTTP1)
	return &http.Transport{
		DialTLSContext: d.dial, TLSClientConfig: trust, Protocols: protocols,
		DisableCompression: true, MaxResponseHeaderBytes: maxHead,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxBody},
	}
}

func (d *dialler) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.target.prober.config.Dial(dialling, network, address)
	if err != nil {
		return nil, err
	}
	d.dialled = true
	if c, ok := conn.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		// Once a second the kernel asks the peer's kernel. So a host whose packets vanish is found
		// within 2 s, at no cost to either process. One lost answer is enough, for it only leads to
		// a probe. Where keep-alive cannot be set (a tunnel), the light checks find it.
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1})
	}
	m := &metered{Conn: conn}
	m.left.Store(perRequest * int64(len(ptr.Deref(d.target.claims.Load(), nil))+2*lightChecks+1))
	c, err := reach.Handshake(ctx, m, address, d.trust, d.target.prober.log)
	if err == nil && d.target.key.server && c.ConnectionState().NegotiatedProtocol != "h2" {
		_ = conn.Close() // without ALPN net/http speaks HTTP/1.1 even where Protocols does not contain it
		return nil, errors.New("the server does not speak HTTP/2")
	}
	return c, err
}

// metered is a connection below TLS. Who sends more than was asked for loses it: net/http reads, and answers PINGs, for
// as long as they come, also while a connection is only watched.
type metered struct {
	net.Conn
	left atomic.Int64
}

func (c *metered) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.spend(n, err)
}

func (c *metered) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.spend(perWrite, err)
}

func (c *metered) spend(n int, err error) error {
	if c.left.Add(-int64(n)) < 0 {
		return errors.New("the server sends more than was asked for")
	}
	return err
}

func closeConn(c *http.ClientConn) {
	if c != nil {
		_ = c.Close() // the connection is ours alone, and requests in flight are sent again
	}
}

// explain returns a report's reason and message for an error: those of a typed error, else
// kube-aggregator's words. All timeouts get one text, whichever timer fired first and whatever was
// awaited. Other texts that differ without a difference in cause are merged by the registry.
func explain(err error, url string) (reason, message string) {
	var typed interface {
		error
		Reason() string
	}
	if errors.As(err, &typed) && typed.Reason() != "" {
		return typed.Reason(), bounded(typed.Error())
	}
	op, is := errors.AsType[*net.OpError](err)
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() && (!is || op.Op != "dial") {
		err = context.DeadlineExceeded
	}
	return registry.ReasonFailedDiscoveryCheck, bounded("failing or missing response from " + url + ": " + err.Error())
}

// bounded cuts a message that may come from a backend, and keeps it valid UTF-8.
func bounded(text string) string { return strings.ToValidUTF8(printable.Cut(text, maxMessage), "�") }

const (
	// gateSlots and gateHold bound how many probes start at once. The cost of a start is the handshake, about a
	// millisecond of CPU: a process with 1,000 entries takes a second or two to start, instead of all CPUs at once. A
	// slot is held for gateHold at most, so that backends that do not answer never keep others from being probed: in
	// the worst case, when none answers, 640 probes start each second.
	gateSlots = 64
	gateHold  = 100 * time.Millisecond
)

// gate is that bound. Each element in the channel is a used slot.
type gate chan struct{}

func (g gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	free := sync.OnceFunc(func() { <-g })
	timer := time.AfterFunc(gateHold, free)
	return func() { timer.Stop(); free() }, nil
}
