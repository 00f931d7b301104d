//go:build e2e

package faults

import (
	"fmt"
	"net/http"
	"slices"
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
		name string
		run  func(*testing.T, *door)
	}{
		{"hung", func(t *testing.T, d *door) { oneOfThree(t, d, extension.Hang, d.reads, hungIdle) }},
		// This precedes any sent request, so writes and watches continue, too.
		{"of another CA", func(t *testing.T, d *door) { oneOfThree(t, d, extension.WrongCA, d.mixed, nextProbe) }},
		{"blackholed", testBlackhole},
		{"slow", testSlow},
	} {
		t.Run("one of three: "+tc.name, func(t *testing.T) {
			t.Parallel()
			tc.run(t, d)
		})
	}
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

func oneOfThree(t *testing.T, d *door, kind extension.Kind, load func(*backend) func(int) (string, string, string), within time.Duration) {
	b, servers := d.backend(t, 3)
	l := (&volley.Load{Every: 40 * time.Millisecond, Clients: d.w.clients(2, true), Make: load(b)}).Start(t)
	suite.Pause(t, time.Second)

	bad := servers[0]
	if n, _ := strangers(b, bad, 0); n == 0 {
		t.Error("the endpoint got no traffic while it was healthy")
	}
	begun := d.w.start()
	must.Do(t, bad.Set(extension.Fault{Kind: kind}))
	begun.within(t, within, "unhealthy", eventually(t, "unhealthy", func() bool { return !b.healthy(d, bad.Addr()) }))
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
	eventually(t, "healthy again", func() bool { return b.healthy(d, bad.Addr()) })
}

// testBlackhole disconnects one of three hosts.
func testBlackhole(t *testing.T, d *door) {
	b := d.w.newBackend()
	var lost *host
	var addresses []string
	for range 3 {
		p := b.start(t, d.w.addHost(t))
		lost, addresses = p.host, append(addresses, p.addr())
	}
	b.register(t, addresses...)
	b.await(t, d)
	l := (&volley.Load{Every: 20 * time.Millisecond, Clients: d.w.clients(2, true), Make: d.mixed(b)}).Start(t)
	suite.Pause(t, steadyPause)

	begun := d.w.start()
	lost.unplug(t)
	begun.within(t, failOver, "unhealthy", eventually(t, "unhealthy", func() bool { return !b.healthy(d, addresses[2]) }))
	suite.Pause(t, failOver)
	lost.plug(t)
	eventually(t, "healthy again", func() bool { return b.healthy(d, addresses[2]) })

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

// testSlow makes one of three endpoints a hundred times slower for all but its probes: only live
// traffic shows it.
func testSlow(t *testing.T, d *door) {
	b, servers := d.backend(t, 3)
	delay := func(s *extension.Server, by time.Duration) {
		must.Do(t, s.Set(extension.Fault{Kind: extension.Slow, Delay: by, Path: b.widgets()}))
	}
	for _, s := range servers {
		delay(s, 2*time.Millisecond)
	}
	l := (&volley.Load{Every: 10 * time.Millisecond, Clients: d.w.clients(2, true), Make: d.reads(b)}).Start(t)
	suite.Pause(t, steadyPause)
	delay(servers[0], 200*time.Millisecond)
	suite.Pause(t, 15*time.Second) // 10 s of witnesses, and those of a busy machine
	var from, n [3]int
	for i, s := range servers {
		from[i] = int(last(s))
	}
	suite.Pause(t, 6*time.Second)
	for i, s := range servers {
		n[i], _ = strangers(b, s, int64(from[i]))
	}
	mustSucceed(t, l.Stop(), 0)
	total := n[0] + n[1] + n[2]
	t.Logf("%d of %d requests went to the slow endpoint", n[0], total)
	if total < 200 || float64(n[0]) > 0.01*float64(total) {
		t.Errorf("%d of %d requests went to the slow endpoint, want 1%% at most", n[0], total)
	}
}
