package backend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

const place3 = "10.0.0.3:443"

// crowd are client connections of a Local.
type crowd struct {
	t     *testing.T
	l     *Local
	stays []*Stay
	leave []context.CancelFunc
}

func newCrowd(t *testing.T, n int, change func(*LocalConfig)) *crowd {
	t.Helper()
	c := &crowd{t: t, l: newLocal(t, newNetwork(t), change, place1, place2, place3)}
	c.report(registry.Healthy, place1, place2, place3)
	for range n {
		c.stays, c.leave = append(c.stays, nil), append(c.leave, nil)
		c.come(len(c.stays) - 1)
	}
	return c
}

func (c *crowd) report(h registry.Health, addresses ...string) {
	for _, a := range addresses {
		c.l.Report(registry.Report{Endpoint: registry.Endpoint{Address: a, Health: h}})
	}
}

// come lets a client come over a new connection.
func (c *crowd) come(i int) {
	if c.leave[i] != nil {
		c.leave[i]()
		synctest.Wait()
	}
	ctx, leave := context.WithCancel(c.t.Context())
	c.stays[i], c.leave[i] = c.l.Stay(ctx), leave
}

// at sends a request of each connection in each pool, and returns where they went.
func (c *crowd) at() []string {
	c.t.Helper()
	var out []string
	for i, s := range c.stays {
		for _, u := range c.l.pools {
			l := u.take(s)
			l.release()
			if u.HTTP2() {
				l, _ = u.Plan(false, s).Forward.Pick(s, nil).Value.(*endpoint)
				l.release()
			}
			if out = append(out, l.address)[:i+1]; out[i] != l.address {
				c.t.Errorf("connection %d is at %s and %s", i, out[i], l.address)
			}
		}
	}
	return out
}

func (c *crowd) even(share float64) {
	c.t.Helper()
	for a, n := range count(c.at()) {
		if float64(n) > share {
			c.t.Errorf("%s has %d of %d connections", a, n, len(c.stays))
		}
	}
}

func count(list []string) map[string]int {
	out := map[string]int{}
	for _, a := range list {
		out[a]++
	}
	return out
}

// Three hundred client connections are even on three servers; each keeps its server in all pools. While one is down its
// connections are elsewhere, and stay there; two minutes after it came back all are even again.
func TestStay(t *testing.T) { synctest.Test(t, stays) }

func stays(t *testing.T) {
	c := newCrowd(t, 300, nil)
	c.even(100)
	before := c.at()
	c.report(registry.Unhealthy, place2)
	moved := c.at()
	c.report(registry.Healthy, place2)
	for i, now := range c.at() {
		if now != moved[i] || before[i] != place2 && now != before[i] || now == place2 {
			t.Errorf("connection %d: %s, then %s while %s was down, then %s", i, before[i], moved[i], place2, now)
		}
	}
	c.even(150)
	for range 2 * time.Minute / balanceEvery {
		time.Sleep(balanceEvery)
		for i, s := range c.stays {
			if s.Leaves() {
				c.come(i)
			}
		}
		c.at()
	}
	c.even(130)
	for _, leave := range c.leave {
		leave()
	}
	synctest.Wait()
	for _, e := range c.l.pools[0].snapshot() {
		if n := e.server.clients.Load(); n != 0 {
			t.Errorf("%s has %d connections after the end of all", e.address, n)
		}
	}
}

// What not all servers have goes to one of those that is usable, though the others have no clients.
func TestForUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 9, nil)
		c.report(registry.Unhealthy, place1, place3)
		c.at() // all move
		what := schema.GroupVersionResource{Group: "example.com", Version: "v1"}
		for _, have := range [][]string{{place1, place2}, {place2, place3}} {
			c.l.Only("discovery", []string{place1, place2, place3}, map[schema.GroupVersionResource][]string{what: have})
			check.Same(t, place2+" (not all of them serve it)", c.l.Which(nil, what), "where it goes")
		}
	})
}

// A connection leaves a server that has lost a connection, and with what a server has not
// processed; what it has processed is retried there. It leaves for no server that is no better.
func TestStayLeaves(t *testing.T) { synctest.Test(t, leaves) }

func leaves(t *testing.T) {
	c := newCrowd(t, 1, func(cfg *LocalConfig) { cfg.First = true })
	at := func(want string) {
		t.Helper()
		check.Same(t, []string{want}, c.at(), "the connection's server")
	}
	at(place1)
	u := c.l.Upstream(PoolProven)
	retry := func() { // as the engine does
		p := u.Plan(false, c.stays[0])
		check.Same(t, true, p.Stays, "it retries what was processed there")
		l, _ := p.Forward.Pick(p.Client, []*engine.Endpoint{p.Forward.Pick(p.Client, nil)}).Value.(*endpoint)
		l.release()
	}
	retry()
	at(place2)
	c.l.signal(place2, errLost)
	at(place1)
	c.report(registry.Unhealthy, place2, place3)
	c.l.signal(place1, errLost)
	at(place1)
	c.report(registry.Unhealthy, place1)
	at(place1)
	c.report(registry.Healthy, place3)
	at(place3)
	c.report(registry.Healthy, place1, place2)
	at(place3)
	all := []string{place1, place2, place3}
	things := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	goes := func(want string, what schema.GroupVersionResource) {
		t.Helper()
		s := c.l.For(c.stays[0], what)
		l := u.take(s)
		l.release()
		check.Same(t, want, l.address, "where %v goes", what)
	}
	check.Same(t, true, c.l.Alike(), "all servers are alike")
	c.l.Only("discovery", all, map[schema.GroupVersionResource][]string{things: {place1, place2}, things.GroupVersion().WithResource(""): {place1}})
	c.l.Only("OpenAPI", all, map[schema.GroupVersionResource][]string{{Resource: "/path"}: {place3, place2}})
	check.Same(t, false, c.l.Alike(), "all servers are alike")
	goes(place1, things)
	goes(place1, things.GroupVersion().WithResource("others"))
	goes(place3, schema.GroupVersionResource{Resource: "/path"})
	goes(place3, schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	c.report(registry.Unhealthy, place1)
	goes(place2, things)
	goes(place1, things.GroupVersion().WithResource("others")) // it fails there: 404 elsewhere would be wrong
	c.report(registry.Healthy, place1)
	at(place3)
	c.come(0)
	at(place1)
	if !slices.Equal(newCrowd(t, 9, func(cfg *LocalConfig) { cfg.First = true }).at(), slices.Repeat(all[:1], 9)) {
		t.Error("with First, not all are at the first server")
	}
}

// A server that is found gets clients once every document knows it, one that is named no longer
// loses them, but keeps what only it serves, and is forgotten after a quarter of an hour.
func TestFollow(t *testing.T) { synctest.Test(t, follows) }

func follows(t *testing.T) {
	c := newCrowd(t, 30, nil)
	const fresh = "10.0.0.4:443"
	what := schema.GroupVersionResource{Group: "example.com", Version: "v1"}
	var mu sync.Mutex
	running := map[string]int{}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- c.l.Each(ctx, func(ctx context.Context, address string) {
			add := func(n int) { mu.Lock(); defer mu.Unlock(); running[address] += n }
			add(1)
			<-ctx.Done()
			add(-1)
		})
	}()
	want := func(when string, has map[string]bool, each ...string) {
		t.Helper()
		for range 2 { // the second time all stay
			for a, n := range count(c.at()) {
				if !has[a] {
					t.Errorf("%s: %s has %d clients", when, a, n)
				}
			}
		}
		for i := range c.stays {
			c.come(i)
		}
		for a := range has {
			if n := count(c.at())[a]; n == 0 {
				t.Errorf("%s: %s has no clients", when, a)
			}
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		got := map[string]int{}
		for _, a := range each {
			got[a] = 1
		}
		for a, n := range running {
			if n != got[a] {
				t.Errorf("%s: %d goroutines for %s", when, n, a)
			}
		}
	}
	for _, document := range []string{"discovery", "OpenAPI"} {
		c.l.Only(document, []string{place1, place2, place3}, nil)
	}
	want("at first", map[string]bool{place1: true, place2: true, place3: true}, place1, place2, place3)
	c.l.Follow([]string{place2, place3, fresh})
	c.report(registry.Healthy, fresh)
	want("named", map[string]bool{place2: true, place3: true}, place1, place2, place3, fresh)
	all := []string{place1, place2, place3, fresh}
	c.l.Only("discovery", all, map[schema.GroupVersionResource][]string{what: {place1}})
	want("known to one document", map[string]bool{place2: true, place3: true}, all...)
	check.Same(t, place1+" (not all of them serve it)", c.l.Which(c.stays[0], what), "where it goes that only one serves")
	c.l.Only("OpenAPI", all, nil)
	want("known to all", map[string]bool{place2: true, place3: true, fresh: true}, all...)
	time.Sleep(keptServer - time.Second)
	c.l.Follow([]string{place2, place3, fresh})
	check.Same(t, 4, len(c.l.servers.Load().list), "servers before a quarter of an hour")
	time.Sleep(time.Second)
	c.l.Follow([]string{place2, place3, fresh})
	want("forgotten", map[string]bool{place2: true, place3: true, fresh: true}, place2, place3, fresh)
	check.Same(t, false, c.l.At(place1).Ready(), "a forgotten server is ready")
	clients, only := c.l.Stand(place1)
	check.Same(t, 0, int(clients)+len(only), "of a forgotten server")
	c.l.Follow([]string{place1, place2, place3})
	c.report(registry.Healthy, place1)
	want("back", map[string]bool{place1: true, place2: true, place3: true}, all...)
	cancel()
	check.Same(t, true, errors.Is(<-ended, context.Canceled), "it ends with its context")
}

// While none of the servers that are named can take over, those that are named no longer keep their
// clients and get new ones, and are not forgotten.
func TestAllReplaced(t *testing.T) { synctest.Test(t, allReplaced) }

func allReplaced(t *testing.T) {
	c := newCrowd(t, 3, nil)
	const fresh, known = "10.0.0.4:443", "discovery"
	all := []string{place1, place2, place3}
	want := func(when string, has ...string) {
		t.Helper()
		for i := range c.stays {
			for range 2 { // an old and a new connection
				if at := c.at()[i]; !slices.Contains(has, at) {
					t.Errorf("%s: connection %d is at %s", when, i, at)
				}
				c.come(i)
			}
		}
	}
	c.l.Only(known, all, nil)
	c.l.Follow([]string{fresh})
	want("all are replaced by one that is not probed", all...)
	c.report(registry.Healthy, fresh)
	want("it is healthy", all...)
	time.Sleep(keptServer)
	c.l.Follow([]string{fresh})
	want("a quarter of an hour later", all...)
	c.report(registry.Unhealthy, place1, place2)
	want("only one of the former is healthy", place3)
	c.report(registry.Unhealthy, place3)
	c.at() // all move, at once
	want("none of the former is healthy", fresh)
	c.report(registry.Healthy, place3)
	c.l.Only(known, append(all, fresh), nil)
	want("it is known", fresh)
	c.report(registry.Unhealthy, fresh)
	want("it is ill, and a former one is healthy", place3)
	c.report(registry.Healthy, fresh)
	c.l.Follow([]string{fresh})
	want("it is healthy again", fresh)
	check.Same(t, 1, len(c.l.servers.Load().list), "servers")
}

// No client stays with a server that is forgotten, however ill the others are.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, h := range []registry.Health{registry.Healthy, registry.Unhealthy} {
			c := newCrowd(t, 3, nil)
			c.at()
			c.l.Follow([]string{place2})
			time.Sleep(keptServer)
			c.report(h, place1, place2, place3)
			c.l.Follow([]string{place2})
			c.l.signal(place2, errLost)
			c.l.Follow([]string{place2}) // the former are forgotten
			check.Same(t, slices.Repeat([]string{place2}, 3), c.at(), "where they go")
		}
	})
}

// What only servers serve that leave goes to one that still runs.
func TestForLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 9, nil)
		what := schema.GroupVersionResource{Group: "example.com", Version: "v1"}
		for _, down := range []string{place1, place2} {
			other := map[string]string{place1: place2, place2: place1}[down]
			c.report(registry.Healthy, place1, place2, place3)
			c.l.Follow([]string{place3})
			c.l.Only("discovery", []string{place1, place2, place3}, map[schema.GroupVersionResource][]string{what: {place1, place2}})
			c.at() // all move
			c.report(registry.Unhealthy, down)
			check.Same(t, other+" (not all of them serve it)", c.l.Which(nil, what), "where it goes")
			c.report(registry.Healthy, place1, place2)
			c.l.Only("OpenAPI", []string{place3}, nil)
			c.l.Follow([]string{place1, place2, place3})
			c.report(registry.Unhealthy, down)
			check.Same(t, other+" (not all of them serve it)", c.l.Which(nil, what), "where it goes, while a document knows none of them")
		}
	})
}
