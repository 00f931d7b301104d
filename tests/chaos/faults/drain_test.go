//go:build e2e

package faults

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

// testDrain stops one of two Fairleads behind one address, under load.
func testDrain(t *testing.T, d *door) {
	w := d.w
	r := d.remote(t, 2, nil)
	leaving := w.newDoor(t, "--shutdown-delay-duration=1s", "--shutdown-watch-termination-grace-period=1s")
	r.await(t, leaving)
	front, sent := balance(t, leaving, d)
	local := func(int) (string, string, string) { return http.MethodGet, front + "/api/v1/namespaces/default", "" }
	long := func(int) (string, string, string) {
		return http.MethodGet, front + r.widgets + "?watch=1&resourceVersion=1&timeoutSeconds=6", ""
	}
	loads := map[string]*volley.Load{
		"HTTP/2, remote":   {Every: 10 * time.Millisecond, Clients: w.users(4, true), Make: r.mixed(front)},
		"HTTP/2, local":    {Every: 20 * time.Millisecond, Clients: w.users(4, true), Make: local},
		"HTTP/2, watches":  {Every: 100 * time.Millisecond, Clients: w.users(4, true), Make: long},
		"HTTP/1.1, remote": {Every: 20 * time.Millisecond, Clients: w.users(4, false), Make: r.mixed(front)},
	}
	for _, l := range loads {
		l.Start(t)
	}
	suite.Pause(t, steadyPause)
	must.Do(t, leaving.Part.Stop(longest))
	suite.Pause(t, time.Second)
	for name, l := range loads {
		t.Run(name, func(t *testing.T) {
			shots := l.Stop()
			mustSucceed(t, shots, 0)
			volley.Judge(t, shots, 0, (*volley.Shot).Cut)
		})
	}
	if n := sent[0].Load(); n < 4 {
		t.Errorf("%d connections to the drained Fairlead: it was not under load", n)
	}
}

// balance spreads TCP connections over ready doors. It returns the URL, and how many connections each door has got.
func balance(t *testing.T, doors ...*door) (url string, sent *[2]atomic.Int64) {
	t.Helper()
	sent = new([2]atomic.Int64)
	var ready [2]atomic.Bool
	for i, d := range doors { // as load balancers do: /readyz of the main port
		c := d.w.users(1, true)[0]
		// 200 ms: a door must be unready for longer before it refuses connections.
		repeat(t, 200*time.Millisecond, func(ctx context.Context) { ready[i].Store(ask.Serves(ctx, c, d.Endpoint.URL+"/readyz") == nil) })
	}
	var next atomic.Int64
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	relay.Accept(t, l, func(ctx context.Context, c net.Conn) {
		i := int(next.Add(1)) % 2
		if !ready[i].Load() {
			i = 1 - i
		}
		sent[i].Add(1)
		s, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(doors[i].Endpoint.URL, "https://"))
		if err != nil {
			return
		}
		relay.Join(ctx, c, s, c)
	})
	return "https://" + l.Addr().String(), sent
}

// testSecondSignal sends a second SIGTERM to a Fairlead that has a minute to drain.
func testSecondSignal(t *testing.T, d *door) {
	x := d.w.newDoor(t, "--shutdown-delay-duration=1m")
	must.Do(t, x.Part.Signal(syscall.SIGTERM))
	eventually(t, "unready", func() bool {
		err := ask.Serves(t.Context(), x.admin, x.Admin.URL+"/readyz")
		return err != nil && strings.HasPrefix(err.Error(), "500")
	})
	must.Do(t, x.Part.Signal(syscall.SIGTERM))
	select {
	case <-x.Part.Done():
	case <-time.After(time.Second):
		t.Fatal("still running a second later")
	}
}
