//go:build e2e

package faults

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testEndpoints has a backend of three endpoints per case. One fails under traffic.
func testEndpoints(t *testing.T, d *door) {
	for _, tc := range []struct {
		kind extension.Kind
		// all says that writes and watches continue, too: the fault precedes any sent request.
		all bool
		// within is the limit for the verdict.
		within time.Duration
	}{
		{kind: extension.Hang, within: hungIdle},
		{kind: extension.Freeze, within: hungIdle},
		{kind: extension.Reset, within: hungIdle},
		{kind: extension.ResetConn, within: hungIdle},
		{kind: extension.GoAwayUnprocessed, all: true, within: nextProbe},
		{kind: extension.HangConnect, all: true, within: nextProbe},
		{kind: extension.Refuse, all: true, within: nextProbe},
		{kind: extension.WrongCA, all: true, within: nextProbe},
		{kind: extension.Expired, all: true, within: nextProbe},
	} {
		t.Run("one of three: "+string(tc.kind), func(t *testing.T) {
			t.Parallel()
			oneOfThree(t, d, extension.Fault{Kind: tc.kind}, tc.all, tc.within)
		})
	}
	t.Run("one of three: blackholed", func(t *testing.T) {
		t.Parallel()
		testBlackhole(t, d)
	})
	t.Run("one of three: slow", func(t *testing.T) {
		t.Parallel()
		testSlow(t, d, false)
	})
	t.Run("one of three: slow but for probes", func(t *testing.T) {
		t.Parallel()
		testSlow(t, d, true)
	})
}

// strangers counts a server's requests since seq, except probes.
func strangers(b *backend, s *extension.Server, seq int64) (n int, example string) {
	for _, r := range s.Requests(seq) {
		if r.Target == "/apis/"+b.gv() && r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			continue
		}
		n++
		example = fmt.Sprintf("%s %s at %s", r.Method, r.Target, r.Time.Format("15:04:05.000"))
	}
	return n, example
}

func last(s *extension.Server) int64 {
	all := s.Requests(0)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Seq
}

func oneOfThree(t *testing.T, d *door, fault extension.Fault, all bool, within time.Duration) {
	b, servers := d.backend(t, 3, extension.Config{})
	l := &volley.Load{Every: 40 * time.Millisecond, Clients: d.w.clients(2), Make: d.reads(b)}
	if all {
		l.Make = d.mixed(b)
	}
	l.Start(t)
	suite.Pause(t, time.Second)

	bad := servers[0]
	if n, _ := strangers(b, bad, 0); n == 0 {
		t.Error("the endpoint got no traffic while it was healthy")
	}
	begun := d.w.start()
	must.Do(t, bad.Set(fault))
	verdict := begun.until(t, eventually(t, longest, "unhealthy", func() bool { return !b.healthy(d, bad.Addr()) }))
	t.Logf("unhealthy after %s", verdict.Round(time.Millisecond))
	if verdict > within {
		t.Errorf("unhealthy after %s, want %s", verdict, within)
	}
	if b.unavailable(d) {
		t.Error("the APIService is unavailable with two healthy endpoints")
	}
	suite.Pause(t, 200*time.Millisecond) // for requests on their way to the endpoint
	seen := last(bad)
	suite.Pause(t, 3*time.Second)
	if n, example := strangers(b, bad, seen); n > 0 {
		t.Errorf("%d requests were sent to an unhealthy endpoint, such as %s", n, example)
	}
	// Stopped while the fault persists: Fairlead must have given up on hung requests.
	mustSucceed(t, l.Stop(), hungIdle)

	must.Do(t, bad.Set())
	eventually(t, longest, "healthy again", func() bool { return b.healthy(d, bad.Addr()) })
}

// testBlackhole disconnects one of three hosts.
func testBlackhole(t *testing.T, d *door) {
	b := d.w.newBackend()
	var processes []*process
	var addresses []string
	for range 3 {
		p := b.start(t, d.w.hosts.add(t))
		processes, addresses = append(processes, p), append(addresses, p.addr())
	}
	b.register(t, addresses...)
	b.await(t, d)
	l := (&volley.Load{Every: 20 * time.Millisecond, Clients: d.w.clients(2), Make: d.mixed(b)}).Start(t)
	suite.Pause(t, steadyPause)

	lost := processes[0].host
	begun := d.w.start()
	lost.unplug(t)
	verdict := begun.until(t, eventually(t, longest, "unhealthy", func() bool { return !b.healthy(d, addresses[0]) }))
	t.Logf("unhealthy after %s", verdict.Round(time.Millisecond))
	if verdict > failOver {
		t.Errorf("unhealthy after %s, want %s", verdict, failOver)
	}
	suite.Pause(t, failOver)
	lost.plug(t)
	eventually(t, longest, "healthy again", func() bool { return b.healthy(d, addresses[0]) })

	// Requests that may be retried are, and succeed. The others are answered in time, too.
	var reads []volley.Shot
	for _, s := range l.Stop() {
		if s.Method == http.MethodGet && !strings.Contains(s.Target, "?watch=1") {
			reads = append(reads, s)
			continue
		}
		if s.Head == 0 || s.Head > failOver {
			t.Errorf("waited too long: %s", &s)
		}
	}
	mustSucceed(t, reads, failOver)
}

// testSlow makes one of three endpoints a hundred times slower, with its probes or (onlyLive)
// without: then only live traffic shows it.
func testSlow(t *testing.T, d *door, onlyLive bool) {
	const usual, slow = 2 * time.Millisecond, 200 * time.Millisecond
	b := d.w.newBackend()
	servers := b.serve(t, 3, extension.Config{Record: 8192})
	path := "/"
	if onlyLive {
		path = b.widgets()
	}
	for _, s := range servers {
		must.Do(t, s.Set(extension.Fault{Kind: extension.Slow, Delay: usual, Path: path}))
	}
	b.register(t, servers[0].Addr(), servers[1].Addr(), servers[2].Addr())
	b.await(t, d)
	l := (&volley.Load{Every: 10 * time.Millisecond, Clients: d.w.clients(2), Make: d.reads(b)}).Start(t)
	suite.Pause(t, steadyPause)
	must.Do(t, servers[0].Set(extension.Fault{Kind: extension.Slow, Delay: slow, Path: path}))
	suite.Pause(t, 15*time.Second) // the bound
	var from [3]int64
	for i, s := range servers {
		from[i] = last(s)
	}
	suite.Pause(t, 6*time.Second)
	total, toSlow := 0, 0
	for i, s := range servers {
		n, _ := strangers(b, s, from[i])
		total += n
		if i == 0 {
			toSlow = n
		}
	}
	mustSucceed(t, l.Stop(), 0)
	t.Logf("%d of %d requests went to the slow endpoint", toSlow, total)
	if total < 200 || float64(toSlow) > 0.01*float64(total) {
		t.Errorf("%d of %d requests went to the slow endpoint, want 1%% at most", toSlow, total)
	}
}
