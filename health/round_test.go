package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// Whatever a server's answers and connections are like, all its group-versions are healthy, with
// one report each, over few connections.
func TestConnectionsOfRounds(t *testing.T) {
	const ms = time.Millisecond
	each := func(takes func(n int64) time.Duration) http.HandlerFunc {
		var n atomic.Int64
		return func(_ http.ResponseWriter, r *http.Request) { lasts(r, takes(n.Add(1))) }
	}
	after := func(d time.Duration) http.HandlerFunc {
		return each(func(int64) time.Duration { return d })
	}
	allBut := func(slow int64) http.HandlerFunc {
		return each(func(n int64) time.Duration {
			if n == slow {
				return 3 * time.Second
			}
			return 400 * ms
		})
	}
	uneven := func(n int64) time.Duration { return time.Duration(n%5) * 50 * ms }
	closing := func(d time.Duration, every int64) http.HandlerFunc {
		var n atomic.Int64
		return func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1)%every == 0 {
				w.Header().Set("Connection", "close")
			}
			lasts(r, d)
		}
	}
	for _, tt := range []struct {
		name    string
		entries []*registry.Entry
		streams int // the server's limit; zero means net/http's
		handler http.HandlerFunc
		watched int // at most; zero means the default
		passes  time.Duration
		dials   int // at most
	}{
		{"a thousand, far away", family(1000, false, at), 0, after(50 * ms), 0, 4 * time.Second, 1},
		// A round uses its connection until its end, even if no connection may be watched.
		{"unwatched", family(5, false, at), 0, each(uneven), -1, time.Minute, 8},
		{"unwatched, over HTTP/1.1", family(5, true, at), 0, each(uneven), -1, time.Minute, 8},
		// A hedged probe that is answered first aborts no others. If the very first is slow, those
		// that start before any answer are hedged, too.
		{"the first is slow", family(200, false, at), 0, allBut(1), 0, 7 * time.Second, 2 + 2*atOneTime + 1},
		{"the hundredth is slow", family(200, false, at), 0, allBut(100), 0, 7 * time.Second, 2},
		// A server's stream limit is respected, and after its GOAWAY the round continues on a new
		// connection. The end of the watched connection causes a round, too, with growing pauses.
		{"one stream", family(40, false, at), 1, after(20 * ms), 0, time.Minute, 8},
		{"three streams", family(40, false, at), 3, after(20 * ms), 0, time.Minute, 8},
		{"seven answers a connection", family(40, false, at), 0, closing(0, 7), 0, time.Minute, 8 * 60},
		// All are probed within an interval.
		{"one at a time", family(120, true, at), 0, after(90 * ms), 0, oneByOne + time.Second, 120},
		{"one for each connection", family(120, true, at), 0, closing(90*ms, 1), 0, oneByOne + time.Second, 120},
		{"one for each connection, for long", family(5, true, at), 0, closing(0, 1), 0, 5 * time.Minute, 5 * (5*6*2 + 10)},
		{"alone, one for each connection", family(1, false, at), 0, closing(0, 1), 0, 5 * time.Minute, 5*6*2 + 10},
		// A light check is not sent during a round over HTTP/1.1.
		{"light checks", family(12, true, at), 0, after(400 * ms), 0, 2 * time.Minute, 16},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			ca := newAuthority(serverName)
			b := newBench(t, ca, tt.entries, func(c *Config) { c.MaxWatched = tt.watched })
			b.cable.host(at).serveAs(t, ca, &http.Server{Handler: tt.handler, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: tt.streams}})
			b.run(t)
			pass(tt.passes)
			check.Same(t, len(tt.entries), len(b.notes.all()), "reports")
			b.wantAll(t, "at last", registry.Healthy)
			if n := b.dials(); n > tt.dials {
				t.Errorf("%d connections, want at most %d", n, tt.dials)
			}
		})
	}
}

func TestOneConnectionForAllGroupVersions(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		b, h, s := healthy(t, family(5, http1, at))
		pass(time.Minute)
		dials := b.dials()
		if dials < 6 || dials > 8 {
			t.Errorf("%d connections in a minute, want a new one every 10 s", dials)
		}
		sum := 0
		for _, e := range b.feed.entries {
			n := s.times(e)
			if n < dials {
				t.Errorf("%s was probed %d times over %d connections", e.Name, n, dials)
			}
			sum += n
		}
		if light := sum - 5*dials; light < dials || light > lightChecks*dials {
			t.Errorf("%d light checks and %d rounds", light, dials)
		}
		check.Same(t, 1, h.open(), "connections open, only the watched one")

		// One more is probed at once, alone. Removed ones are not probed any more.
		more := append(b.feed.entries, family(6, http1, at)[5])
		more[5].Backend = more[0].Backend
		before, dials := s.times(more[0]), b.dials()
		b.feed.set(more...)
		synctest.Wait()
		if r := b.notes.of(more[5]); r.Health != registry.Healthy || r.at != time.Now() {
			t.Errorf("not probed at once: %+v", r)
		}
		if s.times(more[0]) != before || b.dials() != dials+1 {
			t.Errorf("the others were probed %d times more, over %d connections", s.times(more[0])-before, b.dials()-dials)
		}
		b.feed.set(more[1])
		pass(time.Minute)
		if n := s.times(more[0]) - before; h.open() != 1 || n > 1 {
			t.Errorf("%d connections open, and a removed one was probed %d times", h.open(), n)
		}
		b.feed.set()
		b.wantNothing(t)
	})
}

// A failure of one group-version does not count against others of its endpoint. Meanwhile a failure
// of the endpoint is still noticed for all, and false hints cause no more probes.
func TestVerdictsOfOneEndpoint(t *testing.T) {
	for name, odd := range map[string]http.HandlerFunc{"hangs": hang, "refuses": refuse} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, http1 bool) {
				b, h, s := healthy(t, family(5, http1, at))
				ill, well := b.feed.entries[2], b.feed.entries[0]
				for i := range 10 {
					pass(time.Duration(i) * 1371 * time.Millisecond)
					s.answers(ill, odd)
					pass(19 * time.Second) // an interval and two failures
					if r := b.notes.of(ill); r.Health != registry.Unhealthy || !strings.Contains(r.Message, pathOf(ill)) {
						t.Errorf("the failing one: %+v", r)
					}
					before, dials := s.times(well), b.dials()
					for range 600 {
						if pass(100 * time.Millisecond); i > 5 {
							b.alarm()
						}
					}
					if n := s.times(well) - before; n > 20 {
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
					s.answers(ill, nil)
					h.set(listening)
					pass(6 * time.Second) // a hanging probe may have begun just before
					b.wantAll(t, "after its process is back", registry.Healthy)
				}
			})
		})
	}
}

// However one group-version fails, it alone is unhealthy, in the time of one probe and its hedge.
func TestFaultOfOne(t *testing.T) {
	type key struct{}
	ill := family(1, false, at)[0]
	for _, tt := range []struct {
		name   string
		http1  bool
		claims int
		fails  http.HandlerFunc
		passes time.Duration
	}{
		{"closes the connection", false, 5, func(_ http.ResponseWriter, r *http.Request) {
			_ = r.Context().Value(key{}).(net.Conn).Close() //nolint:forcetypeassert // as in ConnContext below
		}, time.Minute},
		{"ends late", false, 5, endsLate, hedgeAfter + probeTimeout + hedgeAfter},
		{"ends late, over HTTP/1.1", true, 5, endsLate, hedgeAfter + probeTimeout + hedgeAfter},
		{"hangs", true, 100, hang, 7 * time.Second},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			ca := newAuthority(serverName)
			b := newBench(t, ca, family(tt.claims, tt.http1, at))
			var running, most atomic.Int64
			b.cable.host(at).serveAs(t, ca, &http.Server{
				ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == pathOf(ill) {
						tt.fails(w, r)
						return
					}
					n := running.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					lasts(r, 10*time.Millisecond)
					running.Add(-1)
				}),
			})
			b.run(t)
			pass(tt.passes)
			reports := b.notes.all()
			for _, r := range reports {
				if (r.Health == registry.Healthy) != (r.Name != ill.Name) {
					t.Errorf("%+v", r)
				}
			}
			check.Same(t, tt.claims, len(reports), "reports, one for each APIService")
			if n := most.Load(); n > 1+atOneTime {
				t.Errorf("%d probes at the same time", n)
			}
		})
	}
}

// endsLate aborts its connection shortly before a probe's timeout.
func endsLate(_ http.ResponseWriter, r *http.Request) {
	lasts(r, 4*time.Second)
	panic(http.ErrAbortHandler)
}

// An answer at the deadline counts as none: handlers that wait for a hanging dependency answer
// then.
func TestAnswersAtTheDeadline(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		b, _ := serve(t, family(40, http1, at), func(_ http.ResponseWriter, r *http.Request) { lasts(r, probeTimeout) })
		pass(time.Minute)
		b.wantAll(t, "answered at the deadline", registry.Unhealthy)
		check.Same(t, len(b.feed.entries), len(b.notes.all()), "reports, one for each APIService")
	})
}

// A name that cannot be resolved is not tried ten times a second, as an address would be: that
// would load DNS servers.
func TestUnknownNamesAreNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b := newBench(t, newAuthority(serverName), []*registry.Entry{entry(at)}, func(c *Config) {
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

// A hint during a claim's probe leads to another probe, and so do later hints.
func TestAlarmsAmidARound(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		s := newBackend()
		s.delay.Store(int64(800 * time.Millisecond))
		b, h := serve(t, family(3, http1, at), s.ServeHTTP, func(c *Config) { c.MaxWatched = -1 })
		pass(100 * time.Millisecond)
		b.alarm()
		pass(6 * time.Second)
		s.delay.Store(0)
		h.set(refusing)
		from := time.Now()
		for range 10 {
			pass(100 * time.Millisecond)
			b.alarm()
		}
		for _, e := range b.feed.entries {
			if r := b.notes.of(e); r.Health != registry.Unhealthy || r.at.Sub(from) > time.Second {
				t.Errorf("a second after the process died, under traffic: %+v", r)
			}
		}
	})
}

// A bundle that arrives during a round is tried at once. It is that of the Owner or, without an
// Owner, the Backend's: the trust of one APIService does not apply to others.
func TestRenewAmidARound(t *testing.T) {
	for _, owner := range []string{"", family(1, false)[0].Name} {
		overBoth(t, func(t *testing.T, http1 bool) {
			good, other := newAuthority(serverName), newAuthority(serverName)
			var renewed atomic.Bool
			entries := family(3, http1, at)
			entries[0].Backend.Owner = owner // for all entries
			b := newBench(t, good, entries, func(c *Config) {
				c.TLS = func(name string, _ *registry.Backend) (*tls.Config, error) {
					if name != owner { // the trust of another APIService
						return &tls.Config{InsecureSkipVerify: true}, nil
					}
					if renewed.Load() {
						return good.trust()
					}
					time.Sleep(200 * time.Millisecond) // a slow handshake
					return other.trust()
				}
			})
			b.cable.host(at).serve(t, good, newBackend().ServeHTTP)
			b.run(t)
			pass(time.Minute + 100*time.Millisecond)
			for i := range 20 {
				renewed.Store(true)
				b.Renew(b.feed.entries[0].Name)
				pass(600 * time.Millisecond)
				b.wantAll(t, "after its bundle has come", registry.Healthy)
				renewed.Store(false)
				b.Renew(b.feed.entries[0].Name)
				pass(20*time.Second + time.Duration(i)*37*time.Millisecond)
				b.wantAll(t, "after its bundle has gone", registry.Unhealthy)
			}
		})
	}
}

// If a process hangs during a round, all its group-versions are unhealthy within the promised 12 s:
// those that have just passed, and those that wait.
func TestHangAmidARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hung atomic.Bool
		b, _ := serve(t, family(400, false, at), func(w http.ResponseWriter, r *http.Request) {
			if lasts(r, 50*time.Millisecond); hung.Load() {
				hang(w, r)
			}
		})
		for b.dials() < 2 {
			pass(100 * time.Millisecond)
		}
		pass(200 * time.Millisecond)
		hung.Store(true)
		pass(11 * time.Second)
		b.wantAll(t, "11 s after", registry.Unhealthy)
	})
}

// Failing claims share a round, even if their answers arrive one after the other.
func TestFailuresStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b, _ := serve(t, family(5, false, at), func(w http.ResponseWriter, r *http.Request) {
			lasts(r, 200*time.Millisecond+time.Duration(asked.Add(1)%5)*7*time.Millisecond)
			w.WriteHeader(http.StatusForbidden)
		})
		pass(3 * time.Second)
		if n := b.dials(); n > 2*10+2 { // the first one is probed before the others
			t.Errorf("%d connections in 3 s", n)
		}
	})
}

// An extension server that restarts answers 403 or 500 until its informers have synced. Then it is
// used again at once, however long it was down.
func TestServedAgainAfterARestart(t *testing.T) {
	const promised = 300 * time.Millisecond
	for _, down := range []time.Duration{0, 2 * time.Second, time.Minute} {
		bubble(t, fmt.Sprint(down), func(t *testing.T) {
			b, h, s := single(t)
			for syncing := 100 * time.Millisecond; syncing <= 600*time.Millisecond; syncing += 50 * time.Millisecond {
				pass(time.Minute + syncing) // at any point between two probes
				s.status.Store(http.StatusForbidden)
				h.set(refusing)
				pass(down)
				h.set(listening)
				pass(syncing)
				s.status.Store(0)
				if took := b.until(t, registry.Healthy, time.Minute); took > promised {
					t.Errorf("used again %v after it answered, want %v", took, promised)
				}
			}
		})
	}
	bubble(t, "many group-versions", func(t *testing.T) {
		b, h, s := healthy(t, family(500, false, at))
		pass(2 * time.Second)
		s.status.Store(http.StatusForbidden)
		h.set(refusing)
		pass(3 * time.Second)
		h.set(listening)
		pass(700 * time.Millisecond) // errors at first
		s.status.Store(0)
		pass(time.Second)
		b.wantAll(t, "a second after it answers well", registry.Healthy)
	})
	bubble(t, "beside many of another Service that answer badly", func(t *testing.T) {
		b, _, s := single(t)
		crowd := entry()
		crowd.Name, crowd.Backend = "v1beta1.crowd", &registry.Backend{Service: "crowd"}
		for i := range 400 {
			address := fmt.Sprintf("10.1.%d.%d:443", i/100, i%100)
			b.cable.host(address).set(closing)
			crowd.Endpoints = append(crowd.Endpoints, registry.Endpoint{Address: address})
		}
		b.feed.set(b.feed.entries[0], crowd)
		pass(10 * time.Second)
		s.status.Store(http.StatusForbidden)
		b.until(t, registry.Unhealthy, 12*time.Second)
		pass(500 * time.Millisecond)
		s.status.Store(0)
		if took := b.until(t, registry.Healthy, time.Minute); took > promised {
			t.Errorf("used again %v after it answered", took)
		}
	})
}

// If all nodes of a cluster are gone, probing them takes a limited share of a processor, and not a
// redial of each endpoint every 100 ms.
func TestManyThatAreDownAreNotHammered(t *testing.T) {
	const window = 2 * time.Second
	for name, tc := range map[string]struct {
		endpoints int // more than are probed every 100 ms
		set       func(*host, *backend)
		share     time.Duration
	}{
		"refused":        {800, func(h *host, _ *backend) { h.set(refusing) }, dialShare},
		"answered badly": {200, func(_ *host, s *backend) { s.status.Store(http.StatusForbidden) }, probeShare},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newBackend()
			ca := newAuthority(serverName)
			b := newBench(t, ca, copies(tc.endpoints))
			b.cable.host(at).serve(t, ca, s.ServeHTTP)
			tc.set(b.cable.hosts[at], s)
			b.run(t)
			pass(2 * time.Second) // all have failed
			before := b.dials()
			pass(window)
			if got, most := b.dials()-before, int(window/tc.share); got > most*6/5 {
				t.Errorf("%d probes of %d failing endpoints in %v, want %d", got, tc.endpoints, window, most)
			}
		})
	}
}

// APIServices come and go during rounds, answers are late or missing, and the process dies: at the
// end each has its verdict, and nothing is left. The bubble fails if a goroutine is.
func TestChangesAmidRounds(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		var asked atomic.Int64
		b, h := serve(t, family(20, http1, at, "10.0.0.2:443"), func(w http.ResponseWriter, r *http.Request) {
			switch n := asked.Add(1); {
			case n%31 == 0:
				hang(w, r)
			case n%17 == 0:
				panic(http.ErrAbortHandler)
			case n%13 == 0:
				refuse(w, r)
			case n%11 == 0:
				w.Header().Set("Connection", "close")
			default:
				lasts(r, time.Duration(n%7)*100*time.Millisecond)
			}
		})
		all := b.feed.entries
		for i := range 120 {
			b.feed.set(all[i%7 : 20-i%5]...)
			time.Sleep(time.Duration(i%11) * 50 * time.Millisecond)
			b.Signal(all[i%20].Name, at, errors.New("dial failed"))
			b.Renew(all[(i*7)%20].Name)
			if i%60 == 30 {
				h.set(refusing)
			}
			if i%60 == 33 {
				h.set(listening)
			}
		}
		b.feed.set(all...)
		h.set(refusing)
		pass(7 * time.Second) // a hanging probe may have begun just before
		b.wantAll(t, "in the end", registry.Unhealthy)
		b.feed.set()
		b.wantNothing(t)
	})
}
