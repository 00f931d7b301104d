package backend

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

const place3 = "10.0.0.3:443"

type crowd struct {
	t     *testing.T
	l     *Local
	stays []*Stay
	leave []context.CancelFunc

	mu      sync.Mutex // guards running
	running []string   // for which Each runs

	ended   atomic.Int64 // connections with watches
	renewed atomic.Int64 // how often all are probed at once
}

func newCrowd(t *testing.T, n int, change func(*LocalConfig)) *crowd {
	t.Helper()
	c := &crowd{t: t}
	c.l = newLocal(t, newNetwork(t), func(cfg *LocalConfig) {
		if cfg.Renew = func() { c.renewed.Add(1) }; change != nil {
			change(cfg)
		}
	}, place1, place2, place3)
	c.report(registry.Healthy, place1, place2, place3)
	for range n {
		c.stays, c.leave = append(c.stays, nil), append(c.leave, nil)
		c.come(len(c.stays) - 1)
	}
	return c
}

func (c *crowd) report(h registry.Health, addresses ...string) {
	for _, a := range addresses {
		c.l.Report(registry.Report{Endpoint: registry.Endpoint{Address: a, Health: h}, Began: time.Now().Add(1)}) // after what is lost now
	}
}

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
		check.Within(c.t, 0, share, float64(n), "connections of %s, of %d", a, len(c.stays))
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
		check.Same(t, false, now != moved[i] || before[i] != place2 && now != before[i] || now == place2, "connection %d: %s, then %s while %s was down, then %s", i, before[i], moved[i], place2, now)
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
		check.Same(t, 0, e.server.clients.Load(), "connections of %s after the end of all", e.address)
	}
}

// The stories of client connections and the local apiservers 1, 2, …, in which a list is 1,2:
//
//	anew  <n> [first|finds]               n connections, and the healthy servers 1,2,3; finds: 1, others are looked for
//	healthy, unhealthy, lost <servers>    are reported; lost: a connection to them is
//	slow, dialled <servers>               a dial to them takes long, or has ended
//	follow <servers>                      those that are named
//	only <document> <servers> [<what>=<servers>…]   see Only; a what is <group>/<version>/<resource>
//	pass <duration>
//	watch <server>                        begins on a connection to it; is ended=n says how many have been ended
//	come                                  all connections end, and come anew
//	at <servers>                          requests of all connections go there, to each some
//	has <servers>                         they go to no others; and at <servers> once all come anew
//	retry <server> [<what>]               a request of the first connection that its server has not answered goes there
//	goes <what> <server>                  a request of the first connection
//	keeps <what>                          such a request goes where the last one did, though that has more clients
//	which <what> <server>                 the same without a connection, as Which says
//	each <servers>                        for which Each runs
//	is <what>=<value>…                    see value
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, script *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			var c *crowd
			for at, words := range script.Steps() {
				if c == nil || words[0] == "anew" {
					c = newCrowd(t, must.Get(strconv.Atoi(words[1]))(t), func(cfg *LocalConfig) {
						if cfg.First = slices.Contains(words, "first"); slices.Contains(words, "finds") {
							cfg.Finds, cfg.Servers = true, cfg.Servers[:1]
						}
					})
					c.runEach()
				} else {
					c.step(at, words[0], append(words[1:], "", ""))
				}
			}
		})
	})
}

func (c *crowd) step(at, step string, words []string) {
	switch servers := placesOf(words[0]); step {
	case "healthy":
		c.report(registry.Healthy, servers...)
	case "unhealthy":
		c.report(registry.Unhealthy, servers...)
	case "lost":
		c.l.signal(servers[0], errLost)
	case "slow", "dialled":
		for _, e := range c.l.servers.Load().find(servers[0]).of {
			e.suspicion.dialing.Store(map[string]*time.Time{"slow": new(time.Now().Add(-2 * slowDial))}[step])
		}
	case "follow":
		c.l.Follow(servers)
	case "only":
		by := map[schema.GroupVersionResource][]string{}
		for _, w := range words[2:] {
			if what, have, ok := strings.Cut(w, "="); ok {
				by[whatOf(what)] = placesOf(have)
			}
		}
		c.l.Only(words[0], placesOf(words[1]), by)
	case "pass":
		time.Sleep(must.Get(time.ParseDuration(words[0]))(c.t))
	case "at":
		check.Same(c.t, servers, slices.Sorted(maps.Keys(count(c.at()))), "%s: where they go", at)
	case "has":
		for range 2 { // the second time all stay
			for a, n := range count(c.at()) {
				check.Same(c.t, true, slices.Contains(servers, a), "%s: %s may have %d clients", at, a, n)
			}
		}
		c.step(at, "come", words)
		c.step(at, "at", words)
	case "come":
		for i := range c.stays {
			c.come(i)
		}
	case "watch": // of the engine
		e := c.l.servers.Load().find(servers[0]).of[PoolProven-1]
		key := new(tls.Conn)
		c.l.dialled.Store(key, &Conn{at: e, how: dialing{cut: func(*Conn) {
			c.l.dialled.Delete(key)
			c.ended.Add(1)
		}}})
	case "retry": // as the engine does
		p := c.l.Upstream(PoolProven).Plan(false, c.l.For(c.stays[0], whatOf(words[1])))
		check.Same(c.t, true, p.Stays, "%s: it retries there what was processed", at)
		l, _ := p.Forward.Pick(p.Client, []*engine.Endpoint{p.Forward.Pick(p.Client, nil)}).Value.(*endpoint)
		l.release()
		check.Same(c.t, servers[0], l.address, "%s: where it is retried", at)
	case "goes":
		l := c.l.Upstream(PoolProven).take(c.l.For(c.stays[0], whatOf(words[0])))
		l.release()
		check.Same(c.t, placesOf(words[1])[0], l.address, "%s: where it goes", at)
	case "keeps":
		goes := func() *localServer { return c.l.For(c.stays[0], whatOf(words[0])).at.Load() }
		was := goes()
		was.clients.Add(100)
		check.Same(c.t, was.of[0].address, goes().of[0].address, "%s: where it goes", at)
		was.clients.Add(-100)
	case "which":
		check.Same(c.t, placesOf(words[1])[0]+" (not all of them serve it)", c.l.Which(nil, whatOf(words[0])), "%s: where it goes", at)
	case "each":
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		check.Same(c.t, servers, slices.Sorted(slices.Values(c.running)), "%s: runs for", at)
	case "is":
		for _, w := range words[:len(words)-2] {
			what, want, _ := strings.Cut(w, "=")
			check.Same(c.t, want, fmt.Sprint(c.value(what)), "%s: %s", at, what)
		}
	default:
		c.t.Fatalf("%s: unknown step", at)
	}
}

func (c *crowd) value(what string) any {
	switch name, of, _ := strings.Cut(what, ":"); name {
	case "told":
		return c.l.Told()
	case "alike":
		return c.l.Alike()
	case "ended":
		return c.ended.Load()
	case "renewed":
		return c.renewed.Load()
	case "servers":
		return len(c.l.servers.Load().list)
	case "ready":
		return c.l.At(placesOf(of)[0]).Ready()
	default: // clients
		clients, only := c.l.Stand(placesOf(of)[0])
		return int(clients) + len(only)
	}
}

func (c *crowd) runEach() {
	must.Run(c.t, func(ctx context.Context) error {
		return c.l.Each(ctx, func(ctx context.Context, address string) {
			c.mu.Lock()
			c.running = append(c.running, address)
			c.mu.Unlock()
			<-ctx.Done()
			c.mu.Lock()
			defer c.mu.Unlock()
			i := slices.Index(c.running, address)
			c.running = slices.Delete(c.running, i, i+1)
		})
	})
}

func placesOf(servers string) (out []string) {
	for s := range strings.FieldsFuncSeq(servers, func(r rune) bool { return r == ',' }) {
		out = append(out, "10.0.0."+s+":443")
	}
	return out
}

func whatOf(text string) schema.GroupVersionResource {
	w := append(strings.SplitN(text, "/", 3), "", "")
	return schema.GroupVersionResource{Group: w[0], Version: w[1], Resource: w[2]}
}
