package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

func TestHealthyEndpointIsProbedEveryTenSecondsGiveOrTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, _ := single(t)
		pass(10 * time.Minute)
		dials := b.cable.dialled(at)
		shortest, longest := time.Hour, time.Duration(0)
		for i := range len(dials) - 1 {
			d := dials[i+1].Sub(dials[i])
			shortest, longest = min(shortest, d), max(longest, d)
		}
		if shortest < 8*time.Second || longest > 12*time.Second || longest-shortest < time.Second {
			t.Errorf("probes %v to %v apart, want 8 s to 12 s, spread", shortest, longest)
		}
		check.Same(t, 1, h.open(), "connections open, only the watched one")
		check.Same(t, 1, len(b.notes.all()), "reports of an endpoint that did not change")
	})
}

// Last returns the result of the last probe before it is a verdict, and only for probed endpoints.
func TestLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, s := single(t)
		name := entry().Name
		if ended, took, fault := b.Last(name, at); time.Since(ended) > time.Second || took != 0 || fault != "" {
			t.Errorf("a probe that passed: %v, took %v: %q", ended, took, fault)
		}
		s.delay.Store(int64(300 * time.Millisecond))
		pass(15 * time.Second)
		if _, took, fault := b.Last(name, at); took < 300*time.Millisecond || took > time.Second || fault != "" {
			t.Errorf("a slow probe: took %v: %q", took, fault)
		}
		h.set(refusing)
		b.until(t, registry.Unhealthy, time.Second)
		if ended, _, fault := b.Last(name, at); time.Since(ended) > time.Second || fault != b.notes.of(entry()).Message {
			t.Errorf("a failed probe: %v: %q", ended, fault)
		}
		for _, none := range [][2]string{{name, "10.9.9.9:443"}, {"v1.none", at}} {
			if ended, took, fault := b.Last(none[0], none[1]); !ended.IsZero() || took != 0 || fault != "" {
				t.Errorf("%v was never probed: %v, took %v: %q", none, ended, took, fault)
			}
		}
	})
}

// The design's goals without traffic, at any moment between two probes: how soon all that is probed
// at an endpoint is unhealthy, and healthy again.
func TestGoalsWithoutTraffic(t *testing.T) {
	const ms = time.Millisecond
	killed := func(h *host, _ *backend) { h.set(refusing) }
	hung := func(_ *host, s *backend) { s.hung.Store(true) }
	unreachable := func(h *host, _ *backend) { h.set(vanished) } // the kernel, which would notice, is not there
	unready := func(_ *host, s *backend) { s.status.Store(http.StatusInternalServerError) }
	one, apiserver := []*registry.Entry{entry(at)}, []*registry.Entry{servers(at)}
	for _, tt := range []struct {
		name       string
		entries    []*registry.Entry
		fail       func(*host, *backend)
		out, again time.Duration // at most
	}{
		{"killed", one, killed, 1000 * ms, 600 * ms},
		{"hung", one, hung, 11_000 * ms, 6000 * ms}, // 12 s are promised
		{"many group-versions, hung", family(30, false, at), hung, 11_500 * ms, 7000 * ms},
		{"many group-versions, hung, over HTTP/1.1", family(30, true, at), hung, 11_500 * ms, 7000 * ms},
		{"an apiserver, killed", apiserver, killed, 1000 * ms, 1000 * ms},
		{"an apiserver, hung", apiserver, hung, 10_000 * ms, 6000 * ms},
		{"an apiserver, unready", apiserver, unready, 4200 * ms, 700 * ms},
		{"an apiserver without a network", apiserver, unreachable, 7000 * ms, 3000 * ms},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			b, h, s := healthy(t, tt.entries)
			for i := range 40 {
				pass(time.Duration(i) * 371 * ms)
				tt.fail(h, s)
				if took := b.until(t, registry.Unhealthy, time.Minute); took > tt.out {
					t.Errorf("out after %s, want %s", took, tt.out)
				}
				s.hung.Store(false)
				s.status.Store(0)
				h.set(listening)
				if took := b.until(t, registry.Healthy, time.Minute); took > tt.again {
					t.Errorf("back after %s, want %s", took, tt.again)
				}
			}
		})
	}
}

// A second probe confirms that a process is dead, and the report is kube-aggregator's.
func TestVerdictOnADeadProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, _ := single(t)
		h.set(refusing)
		if took := b.until(t, registry.Unhealthy, time.Second); took < firstRetry {
			t.Errorf("unhealthy after %v: want a second probe before it", took)
		}
		check.Same(t, 1+fall, b.dials(), "probes before the verdict, and a first one")
		want := "failing or missing response from https://10.0.0.1:443/apis/metrics.k8s.io/v1beta1: " +
			`Get "https://10.0.0.1:443/apis/metrics.k8s.io/v1beta1": dial tcp 10.0.0.1:443: connect: connection refused`
		if got := b.notes.of(entry()); got.Reason != registry.ReasonFailedDiscoveryCheck || got.Message != want {
			t.Errorf("reason %q, message %s", got.Reason, cmp.Diff(want, got.Message))
		}
	})
}

// One lost probe changes nothing, and is followed by one that passes.
func TestOneLostProbeChangesNothing(t *testing.T) {
	for _, e := range []*registry.Entry{entry(at), servers(at)} {
		bubble(t, e.Name, func(t *testing.T) {
			b, _, s := healthy(t, []*registry.Entry{e})
			for range 5 {
				synctest.Wait() // a probe at this instant ends
				before := b.dials()
				s.status.Store(http.StatusInternalServerError)
				for b.dials() == before {
					pass(time.Millisecond)
				}
				s.status.Store(0)
				pass(30 * time.Second)
			}
			check.Same(t, 1, len(b.notes.all()), "reports")
		})
	}
}

func TestPacesWhileFailing(t *testing.T) {
	ms := func(n ...int) (d []time.Duration) {
		for _, n := range n {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	for _, tt := range []struct {
		name string
		fail func(*host, *backend)
		want []time.Duration
	}{
		{"bad status", func(_ *host, s *backend) { s.status.Store(403) }, ms(100, 100, 100, 100, 100, 100, 100, 100, 100, 112, 126)},
		{"refused", func(h *host, _ *backend) { h.set(refusing) }, ms(100, 100, 100, 100, 100)},
		{"vanished", func(h *host, _ *backend) { h.set(vanished) }, ms(250, 2100, 2100, 2100)},
		{"hung", func(_ *host, s *backend) { s.hung.Store(true) }, ms(250, 5100, 5100, 5100)},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			b, h, s := single(t)
			pass(time.Second)
			tt.fail(h, s)
			before := b.dials()
			b.alarm()
			pass(5 * time.Minute)
			var got []time.Duration
			dials := b.cable.dialled(at)[before:]
			for i := range tt.want {
				got = append(got, dials[i+1].Sub(dials[i]).Truncate(time.Millisecond))
			}
			check.Same(t, tt.want, got, "pauses")
			if end := dials[len(dials)-1].Sub(dials[len(dials)-2]); end > 5*time.Second+firstRetry {
				t.Errorf("after minutes: %v apart", end)
			}
		})
	}
}

// The kernel notices within 2 s that a host has vanished, and ends the watched connection.
func TestVanishedHostIsOutAfterOneDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, _ := single(t)
		pass(3 * time.Second)
		near := h.ends[0]
		if k := near.keepAlive; !k.Enable || k.Idle+time.Duration(k.Count)*k.Interval > 2*time.Second {
			t.Errorf("keep-alive %+v would not show a vanished host within 2 s", k)
		}
		h.set(vanished)
		near.reset() // as the kernel does
		if took := b.until(t, registry.Unhealthy, 5*time.Second); took > 2500*time.Millisecond {
			t.Errorf("took %v after the connection was lost, want at most 2.25 s", took)
		}
	})
}

func TestSignalsAloneNeverEjectAndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := single(t)
		pass(time.Second)
		before := b.dials()
		b.Signal(b.feed.entries[0].Name, at, nil)
		b.Signal("v1.other.example.com", at, errors.New("of another APIService"))
		synctest.Wait()
		check.Same(t, 0, b.dials()-before, "probes without a reason")
		b.alarm()
		synctest.Wait()
		check.Same(t, 1, b.dials()-before, "probes at once")
		for range 60 * 100 {
			b.alarm()
			pass(10 * time.Millisecond)
		}
		// 0.25 + 0.5 + … + 8 s, then one every 10 s.
		if n := b.dials() - before; n > 14 {
			t.Errorf("%d probes in a minute of signals", n)
		}
		for range 600 { // no pause grows beyond the interval
			b.alarm()
			pass(time.Second)
		}
		if n := b.dials() - before; n > 14+70 {
			t.Errorf("%d probes in eleven minutes of signals", n)
		}
		check.Same(t, 1, len(b.notes.all()), "reports")
	})
}

// False hints count less from then on, until one is right. The end of the watched connection counts
// as before.
func TestFalseAlarmsDoNotBlind(t *testing.T) {
	for name, tc := range map[string]struct {
		fail   func(*host, *backend)
		within time.Duration
	}{
		"killed": {func(h *host, _ *backend) { h.set(refusing) }, time.Second},
		"hung":   {func(_ *host, s *backend) { s.hung.Store(true) }, 10 * time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			b, h, s := single(t)
			for i := range 20 {
				for range 600 + 7*i {
					b.alarm()
					pass(100 * time.Millisecond)
				}
				tc.fail(h, s)
				if took := b.until(t, registry.Unhealthy, 30*time.Second); took > tc.within {
					t.Errorf("out after %v, want %v", took, tc.within)
				}
				s.hung.Store(false)
				h.set(listening)
				b.until(t, registry.Healthy, 6*time.Second)
			}
			pass(alarmGap)
			s.status.Store(http.StatusInternalServerError)
			b.alarm()
			b.until(t, registry.Unhealthy, time.Second) // the last alarm was right
		})
	}
}

// A new bundle causes a probe at once, even within the longest pause, and makes its APIServices
// healthy.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, s := single(t)
		name := b.feed.entries[0].Name
		s.status.Store(http.StatusInternalServerError)
		b.until(t, registry.Unhealthy, 12*time.Second)
		for range 20 {
			pass(time.Second) // any moment within a pause of 5 s
			before := b.dials()
			b.Renew("v1.other.example.com")
			b.Renew(name)
			pass(alarmGap)
			if n := b.dials() - before; n < 1 || n > 2 {
				t.Errorf("%d probes, want one, or two if one was due", n)
			}
		}
		s.status.Store(http.StatusOK)
		b.Renew(name)
		if took := b.until(t, registry.Healthy, time.Second); took > alarmGap {
			t.Errorf("healthy after %v", took)
		}
	})
}

func TestWatchedConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		three := []*registry.Entry{entry(at, "10.0.0.2:443", "10.0.0.3:443")}
		b, _ := serve(t, three, newBackend().ServeHTTP, func(c *Config) { c.MaxWatched = 2 })
		for range 20 {
			pass(7 * time.Second)
			open := 0
			for _, h := range b.cable.hosts {
				open += h.open()
			}
			if open != 2 {
				t.Fatalf("%d connections open, want 2", open)
			}
		}
	})
}

func TestStartIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newAuthority(serverName), copies(1000))
		b.cable.host(at).set(vanished)
		b.run(t)
		synctest.Wait()
		check.Same(t, gateSlots, b.dials(), "probes at the same time")
		pass(1600 * time.Millisecond)
		if n := b.dials(); n < 1000 {
			t.Errorf("%d probes after 1.6 s: silent backends delay others", n)
		}
	})
}

// While many others hang, a probe waits longer for its turn than it may take. That says nothing
// about its endpoint, not even about a distant one.
func TestWaitingForATurnIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := serve(t, []*registry.Entry{entry(at)}, newBackend().ServeHTTP, func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				<-time.After(300 * time.Millisecond)
				return dial(ctx, network, address)
			}
		})
		pass(time.Second)
		for range gateSlots {
			b.gate <- struct{}{}
		}
		b.alarm()
		pass(2 * probeTimeout)
		for range gateSlots {
			<-b.gate
		}
		pass(time.Second)
		check.Same(t, 1, len(b.notes.all()), "reports")
		if n := b.dials(); n < 3 {
			t.Errorf("%d probes, want at least two for the signal", n)
		}
	})
}

// If both probes of a round pass at once, one connection is kept and the other one closed.
func TestHedgedProbesLeaveOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := serve(t, []*registry.Entry{entry(at)}, func(_ http.ResponseWriter, r *http.Request) {
			// All requests of a period of three seconds are answered together at its end.
			lasts(r, time.Until(time.Now().Truncate(3*time.Second).Add(3*time.Second)))
		})
		for range 100 {
			pass(3*time.Second + time.Millisecond)
			if n := h.open(); n > 2 {
				t.Fatalf("%d connections open, want the watched one and at most a probe's", n)
			}
		}
		hedged := 0
		dials := b.cable.dialled(at)
		for i := range len(dials) - 1 {
			if dials[i+1].Sub(dials[i]) <= hedgeAfter {
				hedged++
			}
		}
		if hedged < 15 {
			t.Errorf("%d of %d probes were hedged", hedged, len(dials))
		}
	})
}
