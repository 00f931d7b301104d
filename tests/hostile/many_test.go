//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testManyStreams sends a million requests on one connection, or as many as it can in a suite's
// time; with -million it may take ten minutes.
func testManyStreams(t *testing.T, d *door) {
	const million = 1_000_000
	most := 20 * time.Second
	if *allMillion {
		most = 10 * time.Minute
	}
	before, _ := d.memory(t)
	used, begun := d.cpu(t), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	l := must.Get(load.Start(ctx, load.Config{
		Address: d.Front, TLS: d.w.as("busy"), Streams: 100, Next: func(int, int) load.Request { return load.Request{Path: target + "/widget-001"} },
	}))(t)
	defer l.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for l.Snapshot().Done < million && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s := l.Snapshot()
	after, _ := d.memory(t)
	took, cpu := time.Since(begun), d.cpu(t)-used
	t.Logf("%d streams on one connection in %s, %d faults, %.1f µs of cpu each, memory %+d MiB", s.Done, took.Round(time.Second), s.Faults, float64(cpu.Microseconds())/float64(s.Done), (after-before)/mib)
	if s.Faults > 0 || s.Done < 10_000 || *allMillion && s.Done < million {
		t.Errorf("%d streams, %d faults: %v", s.Done, s.Faults, l.Close())
	}
	if after-before > 32*mib {
		t.Errorf("%d MiB were not released", (after-before)/mib)
	}
}

// testIdle opens connections that do nothing after their first request.
func testIdle(t *testing.T, d *door) {
	const (
		connections = 2000
		each        = 64 << 10 // per connection, with its handshake
	)
	var idle []io.Closer
	c := d.endure(t, func() {
		as := d.w.as("idle")
		for range connections {
			idle = append(idle, d.idle(t, as))
		}
	})
	t.Logf("%d idle connections: %d KiB each; %s", connections, c.grown/connections>>10, c)
	c.held(t, connections*each)
	for _, c := range idle {
		_ = c.Close()
	}
	suite.Eventually(t, 30*time.Second, "closed", func() (bool, string) {
		n := d.descriptors(t)
		return n < connections/2, fmt.Sprint(n, " descriptors")
	})
}

// idle opens a connection and sends one request.
func (d *door) idle(t *testing.T, as *tls.Config) io.Closer {
	t.Helper()
	w, err := connect(t.Context(), d.Front, as, true)
	must.Do(t, err)
	_, err = w.ask("GET", "/readyz", true)
	must.Do(t, errors.Join(err, w.flush()))
	for ctx := t.Context(); w.ended.Load() == 0 && ctx.Err() == nil; {
		suite.Pause(t, 200*time.Microsecond)
	}
	return w.tls.NetConn()
}
