//go:build e2e

package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

// design.md's limits, from the fault until its verdict is in force and reported.
const (
	killedBusy = time.Second
	killedIdle = 2 * time.Second
	comeBack   = time.Second
	hungIdle   = 12 * time.Second
	failOver   = 5 * time.Second
)

// testProcess has one backend with one endpoint, whose process is killed, restarted and stopped.
func testProcess(t *testing.T, d *door) {
	b, h := d.w.newBackend(), d.w.addHost(t)
	p := b.start(t, h)
	b.register(t, h.address)
	b.await(t, d)
	down := func() bool { return b.unavailable(d) }
	up := func() bool { return !b.unavailable(d) }
	restart := func(t *testing.T) stopwatch {
		t.Helper()
		must.Do(t, p.Restart(t.Context()))
		return d.w.start()
	}
	t.Run("killed under traffic", func(t *testing.T) {
		l := (&volley.Load{Every: 20 * time.Millisecond, Clients: d.w.clients(2, true), Make: b.reads(d.Endpoint.URL)}).Start(t)
		suite.Pause(t, steadyPause)
		killed := d.w.start()
		p.Kill()
		killed.within(t, killedBusy, "unavailable", down)
		suite.Pause(t, steadyPause)
		restart(t).within(t, comeBack, "available", up)
		back := time.Now()
		suite.Pause(t, time.Second)
		for _, s := range l.Stop() {
			if (s.Began.Before(killed.begun.Add(-100*time.Millisecond)) || s.Began.After(back)) && s.Failed() {
				t.Errorf("while the process was running: %s", &s)
			}
		}
	})
	t.Run("killed idle", func(t *testing.T) {
		suite.Pause(t, steadyPause)
		killed := d.w.start()
		p.Kill()
		killed.within(t, killedIdle, "unavailable", down)
		suite.Pause(t, 2*steadyPause) // until probes are at their slowest
		restart(t).within(t, comeBack, "available", up)
	})
	t.Run("hung idle", func(t *testing.T) {
		hung := d.w.start()
		must.Do(t, p.Signal(syscall.SIGSTOP))
		hung.within(t, hungIdle, "unavailable", down)
		must.Do(t, p.Signal(syscall.SIGCONT))
		// A probe takes at most 5 s, and the next one starts at most 5 s after it.
		d.w.start().within(t, 6*time.Second, "available", up)
	})
}

// testBlackhole disconnects one of three hosts.
func testBlackhole(t *testing.T, d *door) {
	b := d.w.newBackend()
	var lost *host
	var addresses []string
	for range 3 {
		lost = d.w.addHost(t)
		b.start(t, lost)
		addresses = append(addresses, lost.address)
	}
	b.register(t, addresses...)
	b.await(t, d)
	l := (&volley.Load{Every: 20 * time.Millisecond, Clients: d.w.clients(2, true), Make: b.mixed(d.Endpoint.URL)}).Start(t)
	suite.Pause(t, steadyPause)

	begun := d.w.start()
	lost.unplug(t)
	begun.within(t, failOver, "unhealthy", func() bool { return !b.healthy(d, lost.address) })
	suite.Pause(t, failOver)
	lost.plug(t)
	eventually(t, "healthy again", func() bool { return b.healthy(d, lost.address) })

	// Requests that may be retried are, and succeed. The others are answered in time, too.
	shots := l.Stop()
	reads := slices.DeleteFunc(slices.Clone(shots), func(s volley.Shot) bool {
		return s.Method != http.MethodGet || strings.Contains(s.Target, "?watch=1")
	})
	mustSucceed(t, reads, failOver)
	for _, s := range shots {
		if s.Head == 0 || s.Head > failOver {
			t.Errorf("waited too long: %s", &s)
		}
	}
}

// mustSucceed fails the test for failed requests, and for heads that took longer than longest, unless that is zero.
func mustSucceed(t *testing.T, shots []volley.Shot, longest time.Duration) {
	t.Helper()
	volley.Judge(t, shots, 0, func(s *volley.Shot) bool { return s.Failed() || longest > 0 && s.Head > longest })
}

// reads requests a backend's objects in turn, through a Fairlead.
func (b *backend) reads(door string) func(int) (string, string, string) {
	return func(i int) (string, string, string) {
		return http.MethodGet, fmt.Sprintf("%s%s/widget-%03d", door, b.widgets, i%100), ""
	}
}

// mixed reads, writes and watches a backend in turn. A watch ends after a second.
func (b *backend) mixed(door string) func(int) (string, string, string) {
	read := b.reads(door)
	return func(i int) (string, string, string) {
		switch i % 4 {
		case 1:
			return http.MethodPost, door + b.widgets, `{"metadata":{"generateName":"made-"},"spec":{"payload":"x"}}`
		case 3:
			return http.MethodGet, door + b.widgets + "?watch=1&resourceVersion=1&timeoutSeconds=1", ""
		}
		return read(i)
	}
}
