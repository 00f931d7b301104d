package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// probeTimeout is kube-aggregator's own.
	probeTimeout = 5 * time.Second
	// dialTimeout is the part of it that the dial may take: one lost SYN is sent again after 1 s (RFC 6298) and still arrives, and a host whose
	// packets vanish is out within 2 s (keep-alive) + 0.25 s + 2 s.
	dialTimeout = 2 * time.Second
	// maxBody is how much of a body is drained, so that the backend sees its response taken (kubernetes/kubernetes#133644). A discovery document
	// of a group-version is some 100 KiB at most; what is longer costs us only that connection.
	maxBody = 1 << 20
	// maxHead and maxMessage bound what a backend can make us hold and show.
	maxHead, maxMessage = 64 << 10, 1 << 10
)

// probeURL is what is asked for.
func probeURL(e *registry.Entry, address string) *url.URL {
	u := &url.URL{Scheme: "https", Host: address, Path: "/apis/" + e.GroupVersion.Group + "/" + e.GroupVersion.Version}
	switch {
	case e.GroupVersion.Empty():
		u.Path = "/readyz"
	case e.GroupVersion.Group == "":
		u.Path = "/api/" + e.GroupVersion.Version
	}
	return u
}

// open dials a connection for claims, of whose time so much is gone already.
func (t *target) open(ctx context.Context, gone time.Duration) (f finding) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout-gone)
	defer cancel()
	leave, err := t.prober.gate.enter(ctx)
	if err != nil {
		return finding{err: err, failures: 1}
	}
	defer leave()
	start := time.Now()
	trust, err := t.prober.config.TLS(t.key.backend.Owner, t.key.backend)
	if err != nil {
		return finding{err: err, failures: 1}
	}
	d := &dialler{target: t}
	conn, err := d.transport(trust).NewClientConn(ctx, "https", t.key.address)
	f = finding{err: err, conn: conn, took: gone + time.Since(start)}
	if err != nil {
		f.failures, f.undialled = 1, !d.dialled && !errors.As(err, new(*net.DNSError))
	}
	return f
}

// try asks for a claim once.
func (t *target) try(ctx context.Context, c *claim, l *line) finding {
	client := http.Client{
		Transport: l,
		Timeout:   max(probeTimeout-l.took, time.Millisecond), // zero would be none
		// A redirect is an answer, and not a good one (kube-aggregator, remote_available_controller.go).
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	start := time.Now()
	var latency time.Duration
	err := c.get(ctx, func(r *http.Request) (*http.Response, error) {
		resp, err := client.Do(r)
		latency = time.Since(start)
		return resp, err
	})
	f := finding{err: err, latency: latency, took: l.took + time.Since(start)}
	if err != nil {
		f.failures, f.undialled = max(l.failures, 1), l.undialled
	}
	return f
}

// get asks for a group-version's document, or whether a server is ready, and says whether the answer is good.
func (c *claim) get(ctx context.Context, do func(*http.Request) (*http.Response, error)) error {
	req := &http.Request{Method: http.MethodGet, URL: c.at, Host: c.at.Host, Header: c.target.prober.config.Header} // which nobody changes
	resp, err := do(req.WithContext(ctx))
	if err != nil {
		return err
	}
	// A body that does not end, or not well, says nothing against the endpoint (kube-aggregator does not read it); closing it unfinished ends the
	// connection or, on HTTP/2, the stream.
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxBody)
		_ = resp.Body.Close()
	}()
	switch code := resp.StatusCode; {
	case code >= http.StatusOK && code < http.StatusMultipleChoices:
		return nil
	case !c.target.key.server:
		return fmt.Errorf("bad status from %v: %d", c.url, code)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return nil // this is about us, not about the server's health
	default:
		failing, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage)) // the names of the checks that fail
		return fmt.Errorf("bad status from %v: %d: %s", c.url, code, failing)
	}
}

// roundTrip sends a request on a connection.
func roundTrip(conn *http.ClientConn, r *http.Request) (*http.Response, error) {
	resp, err := conn.RoundTrip(r)
	// http.Transport unwraps this itself, http.ClientConn does not; kube-aggregator's message has what is inside.
	const wrapped = "net/http: Transport failed to read from server: "
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), wrapped) {
		err = inner
	}
	return resp, err
}

// dialler dials one connection, which outlives it.
type dialler struct {
	target  *target
	dialled bool
}

// transport is made anew for each, so that nothing of an earlier one can answer for the endpoint.
func (d *dialler) transport(trust *tls.Config) *http.Transport {
	b := d.target.key.backend
	trust = trust.Clone()
	trust.ClientSessionCache = nil // a resumed session would not show us the certificate
	trust.NextProtos = nil
	if trust.ServerName == "" {
		trust.ServerName = b.NameAt(d.target.key.address)
	}
	protocols := new(http.Protocols)
	if d.target.key.server { // what is sent there with our certificate goes over HTTP/2 alone
		trust.VerifyConnection = speaksHTTP2(trust.VerifyConnection)
	} else {
		protocols.SetHTTP1(true)
	}
	protocols.SetHTTP2(!b.HTTP1)
	return &http.Transport{
		DialContext:            d.dial,
		TLSClientConfig:        trust,
		Protocols:              protocols,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHead,
	}
}

var errNoHTTP2 = errors.New("the server does not speak HTTP/2")

// speaksHTTP2 adds to a verification. With a server that knows no ALPN net/http speaks HTTP/1.1 even where that is not among the protocols.
func speaksHTTP2(verify func(tls.ConnectionState) error) func(tls.ConnectionState) error {
	return func(c tls.ConnectionState) error {
		if c.NegotiatedProtocol != "h2" {
			return errNoHTTP2
		}
		if verify == nil {
			return nil
		}
		return verify(c)
	}
}

func (d *dialler) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.target.prober.config.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.dialled = true
	if c, ok := conn.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		// Once a second the kernel asks the peer's kernel: a host whose packets vanish shows within 2 s, at no cost to either process. One lost
		// answer is enough, for it only leads to a probe. Where it cannot be set (a tunnel), the light checks find out.
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1})
	}
	return conn, nil
}

func closeConn(c *http.ClientConn) {
	if c != nil {
		_ = c.Close() // it is ours, and what is in flight is asked for anew
	}
}

// explain makes a report's reason and message of an error: what a typed error says of itself, else kube-aggregator's words.
func explain(err error, url string) (reason, message string) {
	var typed interface {
		error
		Reason() string
	}
	if errors.As(err, &typed) && typed.Reason() != "" {
		return typed.Reason(), bounded(typed.Error())
	}
	return registry.ReasonFailedDiscoveryCheck, bounded("failing or missing response from " + url + ": " + err.Error())
}

// bounded cuts a message that a backend may have had a hand in, and keeps it valid text.
func bounded(text string) string {
	if len(text) > maxMessage {
		text = text[:maxMessage] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

const (
	// gateSlots and gateHold bound how many probes start at once. Their cost is the handshake, about a millisecond of CPU: a start with 1,000
	// entries takes a second or two rather than all CPUs at one go. A slot is held for no longer than gateHold, so that backends that do not
	// answer never keep others from being asked: in the worst case, when none answers, 640 probes start each second.
	gateSlots = 64
	gateHold  = 100 * time.Millisecond
)

// gate is the bound. A slot is an element in the channel.
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
