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
	// hedgeAfter is how long a probe may stay unanswered before a second one runs beside it, so that two failed probes take little longer
	// than one. Sooner when there is a suspicion already.
	hedgeAfter, hedgeSuspicious = time.Second, 250 * time.Millisecond
	// maxBody is how much of a body is drained, so that the backend sees its response taken (kubernetes/kubernetes#133644). A discovery document
	// of a group-version is some 100 KiB at most; what is longer costs us only that connection.
	maxBody = 1 << 20
	// maxHead and maxMessage bound what a backend can make us hold and show.
	maxHead, maxMessage = 64 << 10, 1 << 10
)

// outcome is what one round of probes found out.
type outcome struct {
	err       error // nil: passed
	failures  int
	undialled bool             // not even the dial succeeded, and trying again is cheap
	latency   time.Duration    // from request to response head
	conn      *http.ClientConn // idle and open; nil when it failed or cannot be used again
}

// probeURL is the address as kube-aggregator writes it in its messages.
func probeURL(e *registry.Entry, address string) string {
	u := url.URL{Scheme: "https", Host: address, Path: "/apis/" + e.GroupVersion.Group + "/" + e.GroupVersion.Version}
	switch {
	case e.GroupVersion.Empty():
		u.Path = "/readyz"
	case e.GroupVersion.Group == "":
		u.Path = "/api/" + e.GroupVersion.Version
	}
	return u.String()
}

// round runs a probe, and a second one beside it when the first stays unanswered and two failures would change the verdict. One that passes is
// enough.
func (t *target) round(ctx context.Context, suspicious bool) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan outcome, fall) // room for all: no probe waits to be heard
	launch := func() { go func() { results <- t.ask(ctx) }() }
	launch()
	running := 1

	var hedge <-chan time.Time
	if t.failures == 0 {
		after := hedgeAfter
		if suspicious {
			after = hedgeSuspicious
		}
		timer := time.NewTimer(after)
		defer timer.Stop()
		hedge = timer.C
	}
	var found outcome
	passed := false
	for running > 0 {
		select {
		case <-hedge:
			hedge = nil
			launch()
			running++
		case o := <-results:
			running--
			hedge = nil // a quick failure is followed up by the next round, after a pause
			switch {
			case passed:
				closeConn(o.conn)
			case o.err == nil:
				found, passed = o, true
				cancel() // the other one is no longer needed; it is still awaited
			default:
				o.failures = found.failures + 1
				found = o
			}
		}
	}
	return found
}

// ask sends one probe on a connection dialled for it.
func (t *target) ask(ctx context.Context) (o outcome) {
	leave, err := t.prober.gate.enter(ctx)
	if err != nil {
		return outcome{err: err}
	}
	defer leave()
	start := time.Now()
	defer func() {
		if ctx.Err() == nil {
			t.series.probed(o.err, time.Since(start))
		}
	}()
	trust, err := t.prober.config.TLS(t.key.name, t.key.backend)
	if err != nil {
		return outcome{err: err}
	}
	f := &flight{target: t, trust: trust}
	client := http.Client{
		Transport: f,
		Timeout:   probeTimeout,
		// A redirect is an answer, and not a good one (kube-aggregator, remote_available_controller.go).
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	err = t.get(ctx, client.Do)
	if err == nil && f.conn.Err() == nil {
		return outcome{conn: f.conn, latency: f.latency}
	}
	closeConn(f.conn)
	return outcome{err: err, latency: f.latency, undialled: !f.dialled && !errors.As(err, new(*net.DNSError))}
}

// get asks for a group-version's document, or whether a server is ready, and says whether the answer is good.
func (t *target) get(ctx context.Context, do func(*http.Request) (*http.Response, error)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, nil)
	if err != nil {
		return err
	}
	req.Header = t.prober.config.Header.Clone()
	resp, err := do(req)
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
	case !t.server:
		return fmt.Errorf("bad status from %v: %d", t.url, code)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return nil // this is about us, not about the server's health
	default:
		failing, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage)) // the names of the checks that fail
		return fmt.Errorf("bad status from %v: %d: %s", t.url, code, failing)
	}
}

// flight is the transport of one probe: it dials one connection, which outlives it.
type flight struct {
	target  *target
	trust   *tls.Config
	dialled bool
	conn    *http.ClientConn
	latency time.Duration
}

// RoundTrip dials and sends the request.
func (f *flight) RoundTrip(r *http.Request) (*http.Response, error) {
	conn, err := f.transport().NewClientConn(r.Context(), "https", f.target.key.address)
	if err != nil {
		return nil, err
	}
	f.conn = conn
	start := time.Now()
	resp, err := conn.RoundTrip(r)
	f.latency = time.Since(start)
	// http.Transport unwraps this itself, http.ClientConn does not; kube-aggregator's message has what is inside.
	const wrapped = "net/http: Transport failed to read from server: "
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), wrapped) {
		err = inner
	}
	return resp, err
}

// transport is made anew for each probe, so that nothing of an earlier one can answer for the endpoint.
func (f *flight) transport() *http.Transport {
	b := f.target.key.backend
	trust := f.trust.Clone()
	trust.ClientSessionCache = nil // a resumed session would not show us the certificate
	trust.NextProtos = nil
	if trust.ServerName == "" {
		trust.ServerName = b.NameAt(f.target.key.address)
	}
	protocols := new(http.Protocols)
	if f.target.server { // what is sent there with our certificate goes over HTTP/2 alone
		trust.VerifyConnection = speaksHTTP2(trust.VerifyConnection)
	} else {
		protocols.SetHTTP1(true)
	}
	protocols.SetHTTP2(!b.HTTP1)
	return &http.Transport{
		DialContext:            f.dial,
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

func (f *flight) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := f.target.prober.config.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	f.dialled = true
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
		_ = c.Close() // it is ours alone and nothing is in flight
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
