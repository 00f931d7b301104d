package backend

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// probeInterval and its jitter, probeTimeout, the pauses after a failure, and fall are those of an extension server's probes.
	probeInterval = 10 * time.Second
	probeJitter   = 0.2
	probeTimeout  = 5 * time.Second
	minProbePause = 250 * time.Millisecond
	maxProbePause = 5 * time.Second
	probeFall     = 2
)

// prober asks one local apiserver whether it is ready. Each probe dials anew, as a pooled connection can hide a dead server, and its connection stays open until the
// next one, so that the end of the process shows at once.
type prober struct {
	local   *Local
	address string
	// again has room for one: live traffic found a fault, or the watched connection ended.
	again chan struct{}
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
	failures, pause := 0, minProbePause
	for {
		conn, err := p.probe(ctx)
		if ctx.Err() != nil {
			closeProbe(conn)
			return
		}
		closeProbe(watched)
		watched = conn
		wait := pause
		if err == nil {
			failures, pause = 0, minProbePause
			p.local.report(p.address, registry.Healthy, "")
			wait = time.Duration(float64(probeInterval) * (1 - probeJitter + 2*probeJitter*rand.Float64())) //nolint:gosec // jitter
		} else {
			failures++
			pause = min(2*pause, maxProbePause)
			if failures >= probeFall {
				p.local.report(p.address, registry.Unhealthy, err.Error())
			}
		}
		if !p.sleep(ctx, wait) {
			return
		}
	}
}

// sleep waits for d, for a poke, or for ctx. A poke shortens it, but not below the shortest pause: a flood of failing requests makes four probes a second.
func (p *prober) sleep(ctx context.Context, d time.Duration) bool {
	first := min(d, minProbePause)
	if !pause(ctx, first) {
		return false
	}
	t := time.NewTimer(d - first)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-p.again:
	}
	return true
}

// probe asks once. It returns the connection if that is worth watching.
func (p *prober) probe(ctx context.Context) (*http.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	u := p.local.Upstream(PoolCertificate)
	// Not dialTLS: a failed probe is no news from live traffic.
	tc, derr := u.dialPhases(ctx, p.address, u.target.protocols())
	if derr != nil {
		return nil, derr
	}
	cc, cerr := newTransport(tc, defaultPing, func(string) {}).NewClientConn(ctx, "https", p.address)
	if cerr != nil {
		_ = tc.Close()
		return nil, fmt.Errorf("opening connection: %w", cerr)
	}
	if err := p.ask(ctx, cc); err != nil {
		closeProbe(cc)
		return nil, err
	}
	cc.SetStateHook(func(cc *http.ClientConn) {
		if cc.Err() != nil {
			p.poke()
		}
	})
	return cc, nil
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
