//go:build e2e

package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// design.md's limits, from the fault until its verdict is in force and reported.
const (
	killedBusy = time.Second
	killedIdle = 2 * time.Second
	comeBack   = time.Second
	hungIdle   = 12 * time.Second
	failOver   = 5 * time.Second
)

// testDeaths has one backend with one endpoint, which dies, comes back and hangs. TestRecovery does it with processes.
func testDeaths(t *testing.T, d *door) {
	r := d.remote(t, 1, nil)
	down := func() bool { return r.unavailable(d) }
	up := func() bool { return !r.unavailable(d) }
	set := func(t *testing.T, faults ...extension.Fault) stopwatch {
		t.Helper()
		begun := d.w.start()
		must.Do(t, r.servers[0].Set(faults...))
		return begun
	}
	t.Run("killed under traffic", func(t *testing.T) {
		l := (&volley.Load{Every: 20 * time.Millisecond, Clients: d.w.users(2, true), Make: r.reads(d.Endpoint.URL)}).Start(t)
		suite.Pause(t, steadyPause)
		killed := set(t, extension.Fault{Kind: extension.Dead})
		killed.within(t, killedBusy, "unavailable", down)
		suite.Pause(t, steadyPause)
		set(t).within(t, comeBack, "available", up)
		back := time.Now()
		suite.Pause(t, time.Second)
		for _, s := range l.Stop() {
			if (s.Began.Before(killed.begun.Add(-100*time.Millisecond)) || s.Began.After(back)) && s.Failed() {
				t.Errorf("while the server was running: %s", &s)
			}
		}
	})
	t.Run("killed idle", func(t *testing.T) {
		suite.Pause(t, steadyPause)
		set(t, extension.Fault{Kind: extension.Dead}).within(t, killedIdle, "unavailable", down)
		suite.Pause(t, 2*steadyPause) // until probes are at their slowest
		set(t).within(t, comeBack, "available", up)
	})
	t.Run("hung idle", func(t *testing.T) {
		set(t, extension.Fault{Kind: extension.Freeze}).within(t, hungIdle, "unavailable", down)
		// A probe takes at most 5 s, and the next one starts at most 5 s after it.
		set(t).within(t, 6*time.Second, "available", up)
	})
}

// testBlackhole loses all packets to one of three endpoints, also of open connections.
func testBlackhole(t *testing.T, d *door) {
	r := d.remote(t, 3, nil)
	lost := r.addresses[2]
	l := (&volley.Load{Every: 20 * time.Millisecond, Clients: d.w.users(2, true), Make: r.mixed(d.Endpoint.URL)}).Start(t)
	suite.Pause(t, steadyPause)

	route := " " + lost + "/32 dev lo table local" // it is no longer one of this machine's, so nobody takes its packets
	begun := d.w.start()
	netns.IP(t, "route add"+route)
	begun.within(t, failOver, "unhealthy", func() bool { return !r.healthy(d, lost) })
	suite.Pause(t, failOver)
	netns.IP(t, "route del"+route)
	eventually(t, "healthy again", func() bool { return r.healthy(d, lost) })

	// Requests that may be retried are, and succeed. The others are answered in time, too.
	shots := l.Stop()
	reads := slices.DeleteFunc(slices.Clone(shots), func(s volley.Shot) bool {
		return s.Method != http.MethodGet || strings.Contains(s.Target, "?watch=1")
	})
	mustSucceed(t, reads, failOver)
	for _, s := range shots {
		check.Same(t, true, s.Head != 0 && s.Head <= failOver, "waited too long: %s", &s)
	}
}

// mustSucceed fails the test for failed requests, and for heads that took longer than longest, unless that is zero.
func mustSucceed(t *testing.T, shots []volley.Shot, longest time.Duration) {
	t.Helper()
	volley.Judge(t, shots, 0, func(s *volley.Shot) bool { return s.Failed() || longest > 0 && s.Head > longest })
}

// reads requests a backend's objects in turn, through a Fairlead.
func (r *remote) reads(door string) func(int) (string, string, string) {
	return func(i int) (string, string, string) {
		return http.MethodGet, fmt.Sprintf("%s%s/widget-%03d", door, r.widgets, i%100), ""
	}
}

// mixed reads, writes and watches a backend in turn. A watch ends after a second.
func (r *remote) mixed(door string) func(int) (string, string, string) {
	read := r.reads(door)
	return func(i int) (string, string, string) {
		switch i % 4 {
		case 1:
			return http.MethodPost, door + r.widgets, `{"metadata":{"generateName":"made-"},"spec":{"payload":"x"}}`
		case 3:
			return http.MethodGet, door + r.widgets + "?watch=1&resourceVersion=1&timeoutSeconds=1", ""
		}
		return read(i)
	}
}
