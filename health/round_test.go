package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// family makes n APIServices with one Backend.
func family(n int, http1 bool, addresses ...string) (entries []*registry.Entry) {
	b := *entry().Backend
	b.HTTP1 = http1
	for i := range n {
		e := entry(addresses...)
		e.GroupVersion = schema.GroupVersion{Group: "g" + strconv.Itoa(i) + ".example.com", Version: "v1"}
		e.Name, e.Backend = "v1."+e.GroupVersion.Group, &b
		entries = append(entries, e)
	}
	return entries
}

func pathOf(e *registry.Entry) string { return probeURL(e, at).Path }

// discovery is a handler that counts requests by path, and has a different answer for some of them.
type discovery struct {
	mu    sync.Mutex // guards the fields below
	asked map[string]int
	odd   map[string]http.HandlerFunc
}

func (d *discovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	if d.asked == nil {
		d.asked = map[string]int{}
	}
	d.asked[r.URL.Path]++
	odd := d.odd[r.URL.Path]
	d.mu.Unlock()
	if odd != nil {
		odd(w, r)
	}
}

func (d *discovery) times(e *registry.Entry) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[pathOf(e)]
}

// answers sets a different answer for an entry; nil resets it.
func (d *discovery) answers(e *registry.Entry, odd http.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.odd = map[string]http.HandlerFunc{pathOf(e): odd}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func refuse(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }

// of returns the newest report about an APIService.
func (n *notebook) of(e *registry.Entry) (last timed) {
	for _, r := range n.all() {
		if r.Name == e.Name {
			last = r
		}
	}
	return last
}

// overBoth runs a test in a bubble for each protocol.
func overBoth(t *testing.T, test func(t *testing.T, http1 bool)) {
	t.Helper()
	for _, http1 := range []bool{false, true} {
		bubble(t, fmt.Sprintf("http1=%v", http1), func(t *testing.T) { test(t, http1) })
	}
}

// five runs five APIServices on one endpoint.
func five(t *testing.T, http1 bool) (*bench, *host, *discovery) {
	t.Helper()
	d := &discovery{}
	b, h := served(t, family(5, http1, at), d.ServeHTTP)
	pass(time.Second)
	b.wantAll(t, "after a second", registry.Healthy)
	return b, h, d
}

func TestOneConnectionForAllGroupVersions(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		b, h, d := five(t, http1)
		pass(time.Minute)
		dials := b.dials()
		if dials < 6 || dials > 8 {
			t.Errorf("%d connections in a minute, want a new one every 10 s", dials)
		}
		sum := 0
		for _, e := range b.feed.entries {
			n := d.times(e)
			if n < dials {
				t.Errorf("%s was probed %d times over %d connections", e.Name, n, dials)
			}
			sum += n
		}
		if light := sum - 5*dials; light < dials || light > lightChecks*dials {
			t.Errorf("%d light checks and %d rounds", light, dials)
		}
		check.Same(t, 1, h.open(), "connections open, only the watched one")
		check.Same(t, 5, len(b.notes.all()), "reports, one for each APIService")
	})
}

// A failure of one group-version does not count against others of its endpoint. Meanwhile a failure
// of the endpoint is still noticed for all.
func TestVerdictsOfOneEndpoint(t *testing.T) {
	for name, odd := range map[string]http.HandlerFunc{"hangs": hang, "refuses": refuse} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, http1 bool) {
				b, h, d := five(t, http1)
				ill, well := b.feed.entries[2], b.feed.entries[3]
				for i := range 10 {
					pass(time.Duration(i) * 1371 * time.Millisecond)
					d.answers(ill, odd)
					pass(19 * time.Second) // an interval and two failures
					if r := b.notes.of(ill); r.Health != registry.Unhealthy || !strings.Contains(r.Message, pathOf(ill)) {
						t.Errorf("the failing one: %+v", r)
					}
					before, dials := d.times(well), b.dials()
					pass(time.Minute)
					if n := d.times(well) - before; n > 20 {
						t.Errorf("a healthy one was probed %d times in a minute", n)
					}
					if n := b.dials() - dials; n > 30 && name == "hangs" {
						t.Errorf("%d connections in a minute", n)
					}
					for _, e := range b.feed.entries {
						if r := b.notes.of(e); e != ill && r.Health != registry.Healthy {
							t.Fatalf("%s: %+v", e.Name, r)
						}
					}
					h.set(refusing)
					pass(time.Second)
					for _, e := range b.feed.entries {
						if r := b.notes.of(e); r.Health != registry.Unhealthy || !strings.Contains(r.Message, pathOf(e)) {
							t.Errorf("a second after its process died: %+v", r)
						}
					}
					d.answers(ill, nil)
					h.set(listening)
					pass(6 * time.Second) // a hanging probe may have begun just before
					b.wantAll(t, "after its process is back", registry.Healthy)
				}
			})
		})
	}
}

// All group-versions of a process that hangs are unhealthy within the promised 12 s.
func TestHungProcessWithManyGroupVersions(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		s := newBackend()
		b, _ := served(t, family(30, http1, at), s.ServeHTTP)
		worst := time.Duration(0)
		for i := range 20 {
			pass(20*time.Second + time.Duration(i)*371*time.Millisecond)
			s.hung.Store(true)
			from := time.Now()
			pass(12 * time.Second)
			b.wantAll(t, "after 12 s", registry.Unhealthy)
			out := map[string]time.Duration{} // at the first report
			for _, r := range b.notes.all() {
				if took := r.at.Sub(from); took > 0 && out[r.Name] == 0 {
					out[r.Name] = took
					worst = max(worst, took)
				}
			}
			s.hung.Store(false)
			pass(7 * time.Second)
			b.wantAll(t, "again", registry.Healthy)
		}
		if worst > 11500*time.Millisecond {
			t.Errorf("took %v, leaving no margin below 12 s", worst)
		}
		t.Logf("worst of 20: %v", worst)
	})
}

// An answer at the deadline counts as none: handlers that wait for a hanging dependency answer
// then.
func TestAnswersAtTheDeadline(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		b, _ := served(t, family(40, http1, at), func(_ http.ResponseWriter, r *http.Request) { lasts(r, probeTimeout) })
		pass(time.Minute)
		b.wantAll(t, "answered at the deadline", registry.Unhealthy)
		check.Same(t, len(b.feed.entries), len(b.notes.all()), "reports, one for each APIService")
	})
}

// A server that closes each connection after its answer is healthy, and not redialled often.
func TestConnectionsOfOneAnswer(t *testing.T) {
	for name, entries := range map[string][]*registry.Entry{"one": {entry(at)}, "five over HTTP/1.1": family(5, true, at)} {
		bubble(t, name, func(t *testing.T) {
			b, _ := served(t, entries, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
			pass(5 * time.Minute)
			if n := b.dials(); n > len(entries)*(5*6*2+10) {
				t.Errorf("%d connections in 5 minutes", n)
			}
			if got := b.notes.all(); len(got) != len(entries) {
				t.Errorf("reported %+v", got)
			}
		})
	}
}

// A thousand group-versions of a distant server are probed within seconds, over one connection.
func TestManyGroupVersionsFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBackend()
		s.delay.Store(int64(50 * time.Millisecond))
		b, _ := served(t, family(1000, false, at), s.ServeHTTP)
		pass(4 * time.Second)
		if n, dials := len(b.notes.all()), b.dials(); n != 1000 || dials != 1 {
			t.Errorf("%d reports over %d connections", n, dials)
		}
	})
}

func TestGroupVersionsComeAndGo(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		b, h, d := five(t, http1)
		more := append(b.feed.entries, family(6, http1, at)[5])
		more[5].Backend = more[0].Backend
		before, dials := d.times(more[0]), b.dials()
		b.feed.set(more...)
		synctest.Wait()
		if r := b.notes.of(more[5]); r.Health != registry.Healthy || r.at != time.Now() {
			t.Errorf("not probed at once: %+v", r)
		}
		if d.times(more[0]) != before || b.dials() != dials+1 {
			t.Errorf("the others were probed %d times more, over %d connections", d.times(more[0])-before, b.dials()-dials)
		}
		b.feed.set(more[1])
		pass(time.Minute)
		gone := d.times(more[0])
		if n := h.open(); n != 1 || gone > before+1 {
			t.Errorf("%d connections open, and a removed one was probed %d times", n, gone-before)
		}
		b.feed.set()
		synctest.Wait()
		check.Same(t, 0, h.open(), "connections left")
	})
}

// A name that cannot be resolved is not tried ten times a second, as an address would be: that
// would load DNS servers.
func TestUnknownNamesAreNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b := startBench(t, newAuthority(serverName), []*registry.Entry{entry(at)}, func(c *Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				asked.Add(1)
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}
			}
		})
		b.run(t)
		pass(time.Minute)
		before := asked.Load()
		pass(time.Minute)
		if n := asked.Load() - before; n < 10 || n > 15 {
			t.Errorf("resolved %d times in a minute, want once in 5 s", n)
		}
	})
}

// If a server closes the connection for one group-version, the others of its endpoint stay healthy.
func TestLostConnectionIsTheFaultOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ca := newAuthority(serverName)
		b := startBench(t, ca, family(5, false, at))
		ill := b.feed.entries[2]
		b.cable.host(at).serveAs(t, ca, &http.Server{
			ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
			Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == pathOf(ill) {
					_ = r.Context().Value(key{}).(net.Conn).Close() //nolint:forcetypeassert // as above
				}
				lasts(r, 10*time.Millisecond)
			}),
		})
		b.run(t)
		pass(time.Minute)
		reports := b.notes.all()
		for _, r := range reports {
			if (r.Health == registry.Healthy) != (r.Name != ill.Name) {
				t.Errorf("%+v", r)
			}
		}
		if len(reports) != 5 {
			t.Errorf("%d reports, want one for each APIService", len(reports))
		}
	})
}
