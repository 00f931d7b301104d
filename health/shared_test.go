package health

import (
	"crypto/tls"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// many runs n APIServices on one endpoint with a handler.
func many(t *testing.T, n int, http1 bool, handler http.HandlerFunc, change ...func(*Config)) (*bench, *host) {
	t.Helper()
	return served(t, family(n, http1, at), handler, change...)
}

// lasts is the work of a handler, which ends early if its client leaves.
func lasts(r *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

// wantAllWell fails the test unless each APIService was reported once, as healthy, with at most so
// many dials.
func (b *bench) wantAllWell(t *testing.T, dials int) {
	t.Helper()
	synctest.Wait()
	if got := b.notes.all(); len(got) != len(b.feed.entries) {
		t.Errorf("%d reports of %d APIServices", len(got), len(b.feed.entries))
	}
	b.wantAll(t, "at last", registry.Healthy)
	if n := b.dials(); n > dials {
		t.Errorf("%d connections, want at most %d", n, dials)
	}
}

// A hint during a claim's probe leads to another probe, and so do later hints.
func TestAlarmsAmidARound(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		s := newBackend()
		s.delay.Store(int64(800 * time.Millisecond))
		b, h := many(t, 3, http1, s.ServeHTTP, func(c *Config) { c.MaxWatched = -1 })
		signal := func() { b.Signal(b.feed.entries[1].Name, at, errors.New("dial failed")) }
		pass(100 * time.Millisecond)
		signal()
		pass(6 * time.Second)
		s.delay.Store(0)
		h.set(refusing)
		from := time.Now()
		for range 10 {
			pass(100 * time.Millisecond)
			signal()
		}
		for _, e := range b.feed.entries {
			if r := b.notes.of(e); r.Health != registry.Unhealthy || r.at.Sub(from) > time.Second {
				t.Errorf("a second after the process died, under traffic: %+v", r)
			}
		}
	})
}

// A bundle that arrives during a round is tried at once.
func TestRenewAmidARound(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		good, other := newAuthority(serverName), newAuthority(serverName)
		var renewed atomic.Bool
		b := startBench(t, good, family(3, http1, at), func(c *Config) {
			c.TLS = func(string, *registry.Backend) (*tls.Config, error) {
				if renewed.Load() {
					return &tls.Config{RootCAs: good.roots}, nil
				}
				time.Sleep(200 * time.Millisecond) // a slow handshake
				return &tls.Config{RootCAs: other.roots}, nil
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

// A round uses its connection until its end, even if no connection may be watched.
func TestUnwatchedRoundsUseOneConnection(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		var asked atomic.Int64
		b, _ := many(t, 5, http1, func(_ http.ResponseWriter, r *http.Request) {
			lasts(r, time.Duration(asked.Add(1)%5)*50*time.Millisecond)
		}, func(c *Config) { c.MaxWatched = -1 })
		pass(time.Minute)
		b.wantAllWell(t, 8)
	})
}

// A hedged probe that is answered first does not abort others. If the very first probe is slow,
// those that start before any answer are hedged, too.
func TestHedgeLeavesTheRoundsConnection(t *testing.T) {
	for slow, dials := range map[int64]int{1: 2 + 2*atOneTime + 1, 100: 2} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			b, _ := many(t, 200, false, func(_ http.ResponseWriter, r *http.Request) {
				d := 400 * time.Millisecond
				if asked.Add(1) == slow {
					d = 3 * time.Second
				}
				lasts(r, d)
			})
			pass(7 * time.Second)
			b.wantAllWell(t, dials)
		})
	}
}

// A claim that hangs does not make the others dial all at once.
func TestHangOfOneIsNoRush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ill := pathOf(family(1, true, at)[0])
		var running, most atomic.Int64
		b, _ := many(t, 100, true, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == ill {
				<-r.Context().Done()
				return
			}
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			lasts(r, 10*time.Millisecond)
			running.Add(-1)
		})
		pass(7 * time.Second)
		for _, e := range b.feed.entries {
			if r := b.notes.of(e); (r.Health == registry.Healthy) == (pathOf(e) == ill) {
				t.Errorf("%+v", r)
			}
		}
		if n := most.Load(); n > 1+atOneTime {
			t.Errorf("%d probes at the same time", n)
		}
	})
}

// A server's stream limit is respected, and after its GOAWAY the round continues on a new
// connection: neither is a failure.
func TestServersWithLittleRoom(t *testing.T) {
	var answered atomic.Int64
	for name, tt := range map[string]struct {
		streams int
		handler http.HandlerFunc
		dials   int // in a minute
	}{
		"one stream":    {1, func(_ http.ResponseWriter, r *http.Request) { lasts(r, 20*time.Millisecond) }, 8},
		"three streams": {3, func(_ http.ResponseWriter, r *http.Request) { lasts(r, 20*time.Millisecond) }, 8},
		// The end of the watched connection causes a round, too, with growing pauses.
		"seven answers": {0, func(w http.ResponseWriter, _ *http.Request) {
			if answered.Add(1)%7 == 0 {
				w.Header().Set("Connection", "close")
			}
		}, 8 * 60},
	} {
		bubble(t, name, func(t *testing.T) {
			ca := newAuthority(serverName)
			b := startBench(t, ca, family(40, false, at))
			b.cable.host(at).serveAs(t, ca, &http.Server{Handler: tt.handler, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: tt.streams}})
			b.run(t)
			pass(time.Minute)
			b.wantAllWell(t, tt.dials)
		})
	}
}

// If a process hangs during a round, all its group-versions are unhealthy within the promised 12 s:
// those that have just passed, and those that wait.
func TestHangAmidARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hung atomic.Bool
		b, _ := many(t, 400, false, func(w http.ResponseWriter, r *http.Request) {
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

// A server that answers one request at a time, or one for each connection, is probed for all within
// an interval.
func TestManyOneByOne(t *testing.T) {
	for _, end := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, _ := many(t, 120, true, func(w http.ResponseWriter, r *http.Request) {
				if end {
					w.Header().Set("Connection", "close")
				}
				lasts(r, 90*time.Millisecond)
			})
			pass(oneByOne + time.Second)
			b.wantAllWell(t, 120)
		})
	}
}

// A light check is not sent during a round over HTTP/1.1.
func TestLightChecksKeepOutOfRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := many(t, 12, true, func(_ http.ResponseWriter, r *http.Request) { lasts(r, 400*time.Millisecond) })
		pass(2 * time.Minute)
		b.wantAllWell(t, 16)
	})
}

// However its connections end, a claim takes no longer than one probe and its hedge.
func TestOneDeadlineForAClaim(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		ill := family(1, http1, at)[0]
		b, _ := many(t, 5, http1, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != pathOf(ill) {
				return
			}
			lasts(r, 4*time.Second)
			panic(http.ErrAbortHandler)
		})
		pass(hedgeAfter + probeTimeout + hedgeAfter)
		if r := b.notes.of(ill); r.Health != registry.Unhealthy {
			t.Errorf("%+v", r)
		}
	})
}

// The trust of one APIService does not apply to others with the same Backend: the Owner's does or,
// without an Owner, the Backend's.
func TestTrustIsTheBackends(t *testing.T) {
	for _, owner := range []string{"", family(1, false, at)[0].Name} {
		synctest.Test(t, func(t *testing.T) {
			good, other := newAuthority(serverName), newAuthority(serverName)
			entries := family(2, false, at)
			entries[0].Backend.Owner = owner // for both entries
			b := startBench(t, good, entries, func(c *Config) {
				c.TLS = func(name string, _ *registry.Backend) (*tls.Config, error) {
					if name != owner { // the trust of another APIService
						return &tls.Config{InsecureSkipVerify: true}, nil
					}
					return &tls.Config{RootCAs: other.roots}, nil
				}
			})
			b.cable.host(at).serve(t, good, newBackend().ServeHTTP)
			b.run(t)
			pass(time.Second)
			b.wantAll(t, "with Owner "+owner, registry.Unhealthy)
		})
	}
}

// Traffic with false hints does not cause more probes if another group-version fails anyway.
func TestFalseAlarmsBesideOneThatFails(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		b, _, d := five(t, http1)
		ill, well := b.feed.entries[2], b.feed.entries[3]
		d.answers(ill, refuse)
		pass(time.Minute)
		before := d.times(well)
		for range 600 {
			b.Signal(well.Name, at, errors.New("connection lost"))
			pass(100 * time.Millisecond)
		}
		if n := d.times(well) - before; n > 20 {
			t.Errorf("probed %d times in a minute", n)
		}
	})
}

// Failing claims share a round, even if their answers arrive one after the other.
func TestFailuresStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b, _ := many(t, 5, false, func(w http.ResponseWriter, r *http.Request) {
			lasts(r, 200*time.Millisecond+time.Duration(asked.Add(1)%5)*7*time.Millisecond)
			w.WriteHeader(http.StatusForbidden)
		})
		pass(3 * time.Second)
		if n := b.dials(); n > 2*10+2 { // the first one is probed before the others
			t.Errorf("%d connections in 3 s", n)
		}
	})
}

// A slow group-version does not make the others slow.
func TestOneSlowGroupVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(serverName)
		other := "10.0.0.2:443"
		b := startBench(t, ca, family(3, false, at, other))
		slow := b.feed.entries[0]
		for _, address := range []string{at, other} {
			b.cable.host(address).serve(t, ca, func(_ http.ResponseWriter, r *http.Request) {
				d := time.Millisecond
				if address == at && r.URL.Path == pathOf(slow) {
					d = 300 * time.Millisecond
				}
				lasts(r, d)
			})
		}
		b.run(t)
		pass(5 * time.Minute)
		for _, r := range b.notes.all() {
			if r.Slow && (r.Name != slow.Name || r.Address != at) {
				t.Errorf("%+v", r)
			}
		}
		if last := b.notes.all(); !last[len(last)-1].Slow {
			t.Errorf("the slow one is not reported slow: %+v", last[len(last)-1])
		}
	})
}

// APIServices come and go during rounds, answers are late or missing, and the process dies: at the
// end each has its verdict, and nothing is left.
func TestChangesAmidRounds(t *testing.T) {
	overBoth(t, func(t *testing.T, http1 bool) {
		var asked atomic.Int64
		b, h := many(t, 20, http1, func(w http.ResponseWriter, r *http.Request) {
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
		b.wantNothing(t, h)
	})
}
