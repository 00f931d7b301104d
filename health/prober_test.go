package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

const at = "10.0.0.1:443"

// backend is a handler with a switchable answer, which records the times of requests.
type backend struct {
	status atomic.Int64
	hung   atomic.Bool
	delay  atomic.Int64
	asked  chan time.Time
}

func newBackend() *backend { return &backend{asked: make(chan time.Time, 100_000)} }

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.asked <- time.Now()
	lasts(r, time.Duration(b.delay.Load()))
	if b.hung.Load() {
		<-r.Context().Done()
		return
	}
	if s := b.status.Load(); s != 0 {
		w.WriteHeader(int(s))
	}
	_, _ = w.Write([]byte(`{"kind":"APIResourceList"}`))
}

// single runs one healthy endpoint at `at`.
func single(t *testing.T) (*bench, *host, *backend) {
	t.Helper()
	s := newBackend()
	b, h := served(t, []*registry.Entry{entry(at)}, s.ServeHTTP)
	synctest.Wait()
	if got := b.notes.all(); len(got) != 1 || got[0].Health != registry.Healthy {
		t.Fatalf("a new endpoint that answers is not healthy at once: %+v", got)
	}
	return b, h, s
}

// until returns the time until the newest report about an address has a health. It fails the test
// after limit.
func (b *bench) until(t *testing.T, address string, want registry.Health, limit time.Duration) time.Duration {
	t.Helper()
	from := time.Now()
	patience := time.NewTimer(limit)
	defer patience.Stop()
	for {
		synctest.Wait()
		more := b.notes.next()
		if last := b.notes.last(address); last.Health == want {
			return last.at.Sub(from)
		}
		if time.Since(from) >= limit {
			t.Fatalf("endpoint %s was not reported %d within %v: %+v", address, want, limit, b.notes.all())
		}
		select {
		case <-more:
		case <-patience.C:
		}
	}
}

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
		name := entry(at).Name
		if ended, took, fault := b.Last(name, at); time.Since(ended) > time.Second || took != 0 || fault != "" {
			t.Errorf("a probe that passed: %v, took %v: %q", ended, took, fault)
		}
		s.delay.Store(int64(300 * time.Millisecond))
		pass(15 * time.Second)
		if _, took, fault := b.Last(name, at); took < 300*time.Millisecond || took > time.Second || fault != "" {
			t.Errorf("a slow probe: took %v: %q", took, fault)
		}
		h.set(refusing)
		b.until(t, at, registry.Unhealthy, time.Second)
		if ended, _, fault := b.Last(name, at); time.Since(ended) > time.Second || fault != b.notes.last(at).Message {
			t.Errorf("a failed probe: %v: %q", ended, fault)
		}
		for _, none := range [][2]string{{name, "10.9.9.9:443"}, {"v1.none", at}} {
			if ended, took, fault := b.Last(none[0], none[1]); !ended.IsZero() || took != 0 || fault != "" {
				t.Errorf("%v was never probed: %v, took %v: %q", none, ended, took, fault)
			}
		}
	})
}

func TestProcessDeathShowsWithinASecondIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, _ := single(t)
		for _, into := range []time.Duration{0, 100 * time.Millisecond, 5 * time.Second} {
			pass(into)
			before := b.dials()
			h.set(refusing)
			took := b.until(t, at, registry.Unhealthy, time.Second)
			if took < firstRetry {
				t.Errorf("unhealthy after %v: want a second probe before it", took)
			}
			check.Same(t, fall, b.dials()-before, "probes before the verdict")
			want := "failing or missing response from https://10.0.0.1:443/apis/metrics.k8s.io/v1beta1: " +
				`Get "https://10.0.0.1:443/apis/metrics.k8s.io/v1beta1": dial tcp 10.0.0.1:443: connect: connection refused`
			if got := b.notes.last(at); got.Reason != registry.ReasonFailedDiscoveryCheck || got.Message != want {
				t.Errorf("reason %q, message %s", got.Reason, cmp.Diff(want, got.Message))
			}
			pass(time.Minute)
			h.set(listening)
			if took := b.until(t, at, registry.Healthy, time.Second); took > 600*time.Millisecond {
				t.Errorf("back after %v", took)
			}
		}
	})
}

func TestOneLostProbeChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, s := single(t)
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
		if got := b.notes.all(); len(got) != 1 {
			t.Errorf("reported %+v", got)
		}
	})
}

func TestPacesWhileFailing(t *testing.T) {
	ms := func(n ...int) (d []time.Duration) {
		for _, n := range n {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	tests := []struct {
		name string
		fail func(*host, *backend)
		want []time.Duration
	}{
		{"bad status", func(_ *host, s *backend) { s.status.Store(403) }, ms(100, 100, 100, 100, 100, 100, 100, 100, 100, 112, 126)},
		{"refused", func(h *host, _ *backend) { h.set(refusing) }, ms(100, 100, 100, 100, 100)},
		{"vanished", func(h *host, _ *backend) { h.set(vanished) }, ms(250, 2100, 2100, 2100)},
		{"hung", func(_ *host, s *backend) { s.hung.Store(true) }, ms(250, 5100, 5100, 5100)},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			b, h, s := single(t)
			pass(time.Second)
			tt.fail(h, s)
			before := b.dials()
			b.Signal(b.feed.entries[0].Name, at, errors.New("no answer"))
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

func TestHungProcessIsOutWithinTwelveSecondsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, s := single(t)
		worst := time.Duration(0)
		for i := range 60 {
			pass(time.Duration(i) * 371 * time.Millisecond)
			s.hung.Store(true)
			worst = max(worst, b.until(t, at, registry.Unhealthy, 12*time.Second))
			s.hung.Store(false)
			b.until(t, at, registry.Healthy, 6*time.Second)
		}
		if worst > 11*time.Second {
			t.Errorf("took %v, leaving no margin below 12 s", worst)
		}
		t.Logf("worst of 60: %v", worst)
	})
}

func TestVanishedHostIsOutAfterOneDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, _ := single(t)
		pass(3 * time.Second)
		h.mu.Lock()
		near := h.ends[0]
		h.mu.Unlock()
		if k := near.keepAlive; !k.Enable || k.Idle+time.Duration(k.Count)*k.Interval > 2*time.Second {
			t.Errorf("keep-alive %+v would not show a vanished host within 2 s", k)
		}
		h.set(vanished)
		near.reset() // as the kernel does
		if took := b.until(t, at, registry.Unhealthy, 5*time.Second); took > 2500*time.Millisecond {
			t.Errorf("took %v after the connection was lost, want at most 2.25 s", took)
		}
		pass(time.Minute)
		h.set(listening)
		b.until(t, at, registry.Healthy, 2300*time.Millisecond)
	})
}

func TestSignalsAloneNeverEjectAndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := single(t)
		name := b.feed.entries[0].Name
		pass(time.Second)
		before := b.dials()
		b.Signal(name, at, nil)
		b.Signal("v1.other.example.com", at, errors.New("of another APIService"))
		synctest.Wait()
		check.Same(t, 0, b.dials()-before, "probes without a reason")
		b.Signal(name, at, errors.New("dial failed"))
		synctest.Wait()
		check.Same(t, 1, b.dials()-before, "probes at once")
		for range 60 * 100 {
			b.Signal(name, at, errors.New("dial failed"))
			pass(10 * time.Millisecond)
		}
		// 0.25 + 0.5 + … + 8 s, then one every 10 s.
		if n := b.dials() - before; n > 14 {
			t.Errorf("%d probes in a minute of signals", n)
		}
		for range 600 { // no pause grows beyond the interval
			b.Signal(name, at, errors.New("dial failed"))
			pass(time.Second)
		}
		if n := b.dials() - before; n > 14+70 {
			t.Errorf("%d probes in eleven minutes of signals", n)
		}
		if got := b.notes.all(); len(got) != 1 {
			t.Errorf("ejected by signals alone: %+v", got)
		}
	})
}

// False hints count less from then on. The end of the watched connection counts as before.
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
			worst := time.Duration(0)
			for i := range 20 {
				for range 600 + 7*i {
					b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost"))
					pass(100 * time.Millisecond)
				}
				tc.fail(h, s)
				worst = max(worst, b.until(t, at, registry.Unhealthy, 30*time.Second))
				s.hung.Store(false)
				h.set(listening)
				b.until(t, at, registry.Healthy, 6*time.Second)
			}
			if worst > tc.within {
				t.Errorf("out after %v, want %v", worst, tc.within)
			}
			t.Logf("worst of 20: %v", worst)
		})
	}
}

// After one hint was right, the next one causes a probe at once, however many were false before.
func TestAlarmsCountAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, s := single(t)
		alarm := func() { b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost")) }
		for range 600 {
			alarm()
			pass(100 * time.Millisecond)
		}
		s.status.Store(http.StatusInternalServerError)
		for late := time.Now().Add(time.Minute); b.notes.last(at).Health != registry.Unhealthy && time.Now().Before(late); {
			alarm()
			pass(10 * time.Millisecond)
		}
		b.until(t, at, registry.Unhealthy, 0)
		s.status.Store(http.StatusOK)
		b.until(t, at, registry.Healthy, 6*time.Second)
		pass(alarmGap)
		s.status.Store(http.StatusInternalServerError)
		alarm()
		b.until(t, at, registry.Unhealthy, time.Second)
	})
}

// A new bundle causes a probe at once, even within the longest pause, and makes its APIServices
// healthy.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, s := single(t)
		name := b.feed.entries[0].Name
		s.status.Store(http.StatusInternalServerError)
		b.until(t, at, registry.Unhealthy, 12*time.Second)
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
		if took := b.until(t, at, registry.Healthy, time.Second); took > alarmGap {
			t.Errorf("healthy after %v", took)
		}
	})
}

func TestWatchedConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(serverName)
		addresses := []string{"10.0.0.1:443", "10.0.0.2:443", "10.0.0.3:443"}
		b := startBench(t, ca, []*registry.Entry{entry(addresses...)}, func(c *Config) { c.MaxWatched = 2 })
		for _, a := range addresses {
			b.cable.host(a).serve(t, ca, newBackend().ServeHTTP)
		}
		b.run(t)
		for range 20 {
			pass(7 * time.Second)
			open := 0
			for _, a := range addresses {
				open += b.cable.hosts[a].open()
			}
			if open != 2 {
				t.Fatalf("%d connections open, want 2", open)
			}
		}
	})
}

func TestStartIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t, newAuthority(serverName), copies(1000))
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
		distant := func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				<-time.After(300 * time.Millisecond)
				return dial(ctx, network, address)
			}
		}
		b, _ := served(t, []*registry.Entry{entry(at)}, newBackend().ServeHTTP, distant)
		pass(time.Second)
		for range gateSlots {
			b.gate <- struct{}{}
		}
		b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost"))
		pass(2 * probeTimeout)
		for range gateSlots {
			<-b.gate
		}
		pass(time.Second)
		if got := b.notes.all(); len(got) != 1 {
			t.Errorf("reported %+v", got)
		}
		if n := b.dials(); n < 3 {
			t.Errorf("%d probes, want at least two for the signal", n)
		}
	})
}

// If both probes of a round pass at once, one connection is kept and the other one closed.
func TestHedgedProbesLeaveOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := served(t, []*registry.Entry{entry(at)}, func(_ http.ResponseWriter, r *http.Request) {
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
