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

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/relay"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testDrain stops one of two Fairleads behind one address, under load.
func testDrain(t *testing.T, d *door) {
	w := d.w
	b, _ := d.backend(t, 2)
	leaving := w.newDoor(t, "--shutdown-delay-duration=1s", "--shutdown-watch-termination-grace-period=1s")
	b.await(t, leaving)
	lb := newBalancer(t, leaving, d)
	through := &door{Front: &cluster.Front{Endpoint: cluster.Endpoint{URL: "https://" + lb.l.Addr().String()}}, w: w}
	local := func(i int) (string, string, string) {
		return http.MethodGet, through.Endpoint.URL + "/api/v1/namespaces/default", ""
	}
	long := func(i int) (string, string, string) {
		return http.MethodGet, through.Endpoint.URL + b.widgets() + "?watch=1&resourceVersion=1&timeoutSeconds=6", ""
	}
	loads := map[string]*volley.Load{
		"HTTP/2, remote":   {Every: 10 * time.Millisecond, Clients: w.clients(4, true), Make: through.mixed(b)},
		"HTTP/2, local":    {Every: 20 * time.Millisecond, Clients: w.clients(4, true), Make: local},
		"HTTP/2, watches":  {Every: 100 * time.Millisecond, Clients: w.clients(4, true), Make: long},
		"HTTP/1.1, remote": {Every: 20 * time.Millisecond, Clients: w.clients(4, false), Make: through.mixed(b)},
	}
	for _, l := range loads {
		l.Start(t)
	}
	suite.Pause(t, steadyPause)
	must.Do(t, leaving.Part.Signal(syscall.SIGTERM))
	leaving.ends(t, longest)
	if err := leaving.Part.Err().Error(); !strings.Contains(err, "exit status 0") {
		t.Errorf("exited with %s", err)
	}
	suite.Pause(t, time.Second)
	for name, l := range loads {
		t.Run(name, func(t *testing.T) {
			shots := l.Stop()
			mustSucceed(t, shots, 0)
			volley.Judge(t, shots, 0, (*volley.Shot).Cut)
		})
	}
	if n := lb.sent[0].Load(); n < 4 {
		t.Errorf("%d connections to the drained Fairlead: it was not under load", n)
	}
}

// balancer spreads TCP connections over ready doors.
type balancer struct {
	l     net.Listener
	doors [2]*door
	ready [2]atomic.Bool
	sent  [2]atomic.Int64
	next  atomic.Int64
}

func newBalancer(t *testing.T, doors ...*door) *balancer {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	lb := &balancer{l: l, doors: [2]*door(doors)}
	for i := range lb.doors {
		lb.ready[i].Store(true)
		beside(t, func(ctx context.Context) { lb.probe(ctx, i) })
	}
	relay.Accept(t, l, lb.serve)
	return lb
}

// probe requests /readyz from the main port, as load balancers do.
func (lb *balancer) probe(ctx context.Context, i int) {
	c := lb.doors[i].w.clients(1, true)[0]
	tick := time.NewTicker(200 * time.Millisecond) // a door must be unready for longer before it refuses connections
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		lb.ready[i].Store(ask.Serves(ctx, c, lb.doors[i].Endpoint.URL+"/readyz") == nil)
	}
}

func (lb *balancer) serve(ctx context.Context, c net.Conn) {
	i := int(lb.next.Add(1)) % 2
	if !lb.ready[i].Load() {
		i = 1 - i
	}
	lb.sent[i].Add(1)
	s, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(lb.doors[i].Endpoint.URL, "https://"))
	if err != nil {
		return
	}
	relay.Join(ctx, c, s, c)
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
	x.ends(t, time.Second)
}
