//go:build e2e

package faults

import (
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testRolling replaces the three endpoints of a backend one by one, as a Deployment does: the new
// pod is ready, and the old one gets SIGTERM. It still serves requests, with a GOAWAY on each
// connection, and exits before its grace period ends.
func testRolling(t *testing.T, d *door) {
	const grace = 2 * time.Second // longer than any request of the mix
	b := d.w.newBackend()
	servers := b.serve(t, 6, extension.Config{})
	b.register(t, servers[0].Addr(), servers[1].Addr(), servers[2].Addr())
	b.await(t, d)
	l := (&volley.Load{Every: 5 * time.Millisecond, Clients: d.w.clients(4), Make: d.mixed(b)}).Start(t)
	suite.Pause(t, time.Second)
	for i := range 3 {
		old, fresh := servers[i], servers[i+3]
		b.update(t, func(s *discoveryv1.EndpointSlice) {
			c := &s.Endpoints[0].Conditions
			c.Ready, c.Terminating = new(false), new(true)
			s.Endpoints = append(s.Endpoints, ready(fresh.Addr()))
		})
		must.Do(t, old.Set(extension.Fault{Kind: extension.GoAway}))
		suite.Pause(t, grace)
		b.update(t, func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[1:] })
		must.Do(t, old.Set(extension.Fault{Kind: extension.Dead}))
	}
	suite.Pause(t, time.Second)
	shots := l.Stop()
	mustSucceed(t, shots, 0)
	mustBeWhole(t, shots)
	for i, s := range servers[3:] {
		if n, _ := strangers(b, s, 0); n == 0 {
			t.Errorf("new endpoint %d got no traffic", i)
		}
	}
}
