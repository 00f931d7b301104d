package backend

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// All of these are those of an extension server's probes (package health), where their reasons are: the same
	// goals hold. A test of the whole repository holds them to it. What bounds the redials of thousands is not here:
	// local apiservers are few.
	probeInterval  = 10 * time.Second
	probeJitter    = 0.2
	probeTimeout   = 5 * time.Second
	probeDial      = 2 * time.Second
	hedgeAfter     = time.Second
	hedgeSuspected = 250 * time.Millisecond
	firstRetry     = 100 * time.Millisecond
	lastRetry      = 5 * time.Second
	retryFraction  = 8
	alarmGap       = 250 * time.Millisecond
	probeFall      = 2
	lightChecks    = 4
	lightPatience  = 500 * time.Millisecond
)

// prober asks one local apiserver whether it is ready. Each probe dials anew, as a pooled connection can hide a dead server, and its connection stays open until the
// next one, so that the end of the process shows at once; in between it is asked on that connection, which only ever leads to a probe.
type prober struct {
	local   *Local
	address string
	// again has room for one: live traffic found a fault, or the watched connection ended.
	again chan struct{}
}

// probed is what came of one probe, or of two beside each other.
type probed struct {
	conn      *http.ClientConn // idle and open. Nil: it failed
	err       error
	failures  int
	undialled bool // not even the dial succeeded: trying again is cheap
}

func newProber(l *Local, address string) *prober {
	return &prober{local: l, address: address, again: make(chan struct{}, 1)}
}

// poke asks for a probe at once.
func (p *prober) poke() {
	select {
	case p.again <- struct{}{}:
	default: // one is on its way
	}
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) {
	var watched *http.ClientConn
	defer func() { closeProbe(watched) }()
	failures, suspected := 0, false
	var since time.Time // when it began to fail as it does now
	undialled := false
	for {
		started := time.Now()
		r := p.round(ctx, failures == 0, suspected)
		if ctx.Err() != nil {
			closeProbe(r.conn)
			return
		}
		closeProbe(watched)
		watched = r.conn
		var wait time.Duration
		if r.err == nil {
			failures = 0
			p.local.report(p.address, registry.Healthy, "")
			wait = time.Duration(float64(probeInterval) * (1 - probeJitter + 2*probeJitter*rand.Float64())) //nolint:gosec // jitter
		} else {
			if failures == 0 || undialled != r.undialled {
				since, undialled = started, r.undialled
			}
			failures += r.failures
			if failures >= probeFall {
				p.local.report(p.address, registry.Unhealthy, r.err.Error())
			}
			wait = pauseAfter(started.Sub(since), undialled)
		}
		var ok bool
		if suspected, ok = p.sleep(ctx, wait, watched); !ok {
			return
		}
	}
}

// pauseAfter is the time from a probe that failed to the next, when it has failed so for a while.
func pauseAfter(failing time.Duration, undialled bool) time.Duration {
	if undialled {
		return firstRetry
	}
	return min(max(firstRetry, failing/retryFraction), lastRetry)
}

// sleep waits for d, for a poke, for a light check without an answer, or for ctx: suspected says that it was not d. A poke shortens it, but not below the shortest
// pause: a flood of failing requests makes four probes a second.
func (p *prober) sleep(ctx context.Context, d time.Duration, watched *http.ClientConn) (suspected, ok bool) {
	end, step := time.Now().Add(d), d/lightChecks
	if !pause(ctx, min(d, alarmGap)) {
		return false, false
	}
	for {
		left := time.Until(end)
		if watched != nil {
			left = min(left, step)
		}
		t := time.NewTimer(left)
		select {
		case <-ctx.Done():
			t.Stop()
			return false, false
		case <-p.again:
			t.Stop()
			return true, true
		case <-t.C:
		}
		if time.Until(end) < alarmGap {
			return false, true
		}
		if err := p.check(ctx, watched); err != nil {
			return true, ctx.Err() == nil
		}
	}
}

// check asks on the watched connection.
func (p *prober) check(ctx context.Context, watched *http.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, lightPatience)
	defer cancel()
	return p.ask(ctx, watched)
}

// round probes, and once more beside it when that stays unanswered and two failures would change the verdict: they take little longer than one then. One that passes
// is enough.
func (p *prober) round(ctx context.Context, healthy, suspected bool) probed {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan probed, probeFall) // room for all: no probe waits to be heard
	running := 0
	launch := func() {
		running++
		go func() { results <- p.probe(ctx) }()
	}
	launch()
	var hedge <-chan time.Time
	if healthy {
		after := hedgeAfter
		if suspected {
			after = hedgeSuspected
		}
		t := time.NewTimer(after)
		defer t.Stop()
		hedge = t.C
	}
	var found probed
	passed := false
	for running > 0 {
		select {
		case <-hedge:
			hedge = nil
			launch()
		case r := <-results:
			running--
			hedge = nil // what fails quickly is asked again after a pause
			switch {
			case passed:
				closeProbe(r.conn)
			case r.err == nil:
				found, passed = r, true
				cancel() // the other is still awaited
			default:
				r.failures = found.failures + 1
				found = r
			}
		}
	}
	return found
}

// probe asks once on a connection of its own, and returns that if it is worth watching.
func (p *prober) probe(ctx context.Context) probed {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	u := p.local.Upstream(PoolCertificate)
	dialled := false
	connecting := time.AfterFunc(probeDial, cancel)
	defer connecting.Stop()
	// Not dialTLS: a failed probe is no news from live traffic.
	tc, derr := u.dialPhases(withWrap(ctx, func(c net.Conn) net.Conn {
		dialled = connecting.Stop()
		keepAlive(c)
		return c
	}), p.address, u.target.protocols())
	if derr != nil {
		return probed{err: derr, undialled: !dialled && derr.phase == dialConnect}
	}
	cc, cerr := probeTransport(tc).NewClientConn(ctx, "https", p.address)
	if cerr != nil {
		_ = tc.Close()
		return probed{err: fmt.Errorf("opening connection: %w", cerr)}
	}
	if err := p.ask(ctx, cc); err != nil {
		closeProbe(cc)
		return probed{err: err}
	}
	cc.SetStateHook(func(cc *http.ClientConn) {
		if cc.Err() != nil {
			p.local.signal(p.address, cc.Err())
		}
	})
	return probed{conn: cc}
}

// probeTransport makes an http.ClientConn's transport of one connection that is there already.
func probeTransport(tc *tls.Conn) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Transport{
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return tc, nil },
		Protocols:      &protocols,
		// A silent connection is asked early, so that a throttled server has most of the time to answer.
		HTTP2: &http.HTTP2Config{SendPingTimeout: defaultPing * 2 / 10, PingTimeout: defaultPing * 7 / 10, WriteByteTimeout: defaultPing},
	}
}

// keepAlive makes the kernel ask the other once a second whether its host is still there: one that has lost its network shows within two.
func keepAlive(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}) // else the light checks find out
	}
}

func (p *prober) ask(ctx context.Context, cc *http.ClientConn) error {
	header := p.local.cfg.ProbeHeader
	if header == nil {
		header = http.Header{"X-Remote-User": {"system:kube-aggregator"}, "X-Remote-Group": {"system:masters"}}
	}
	req := (&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: p.address, Path: "/readyz"}, Header: header.Clone()}).WithContext(ctx)
	res, err := cc.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("asking /readyz: %w", err)
	}
	defer res.Body.Close()
	// The names of failing checks are short; more than this is not a readyz.
	text, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("reading /readyz: %w", err)
	}
	// 401 and 403 are about us, not about the server's health.
	if res.StatusCode/100 != 2 && res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden {
		return fmt.Errorf("/readyz answered %s: %.200s", res.Status, text)
	}
	return nil
}

func closeProbe(cc *http.ClientConn) {
	if cc != nil {
		cc.SetStateHook(nil)
		_ = cc.Close() // nothing is on it
	}
}
