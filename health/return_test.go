package health

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// An extension server that restarts answers 403 or 500 until its informers have synced. Then it is
// used again at once, however long it was down.
func TestServedAgainAfterARestart(t *testing.T) {
	const promised = 300 * time.Millisecond
	for _, down := range []time.Duration{0, 100 * time.Millisecond, 2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute} {
		for _, status := range []int{http.StatusForbidden, http.StatusInternalServerError} {
			bubble(t, fmt.Sprintf("%v, then %d", down, status), func(t *testing.T) {
				b, h, s := single(t)
				worst := time.Duration(0)
				for syncing := 100 * time.Millisecond; syncing <= 600*time.Millisecond; syncing += 50 * time.Millisecond {
					pass(time.Minute + syncing) // at any point between two probes
					s.status.Store(int64(status))
					h.set(refusing)
					pass(down)
					h.set(listening)
					pass(syncing)
					s.status.Store(0)
					worst = max(worst, b.until(t, at, registry.Healthy, time.Minute))
				}
				if worst > promised {
					t.Errorf("used again %v after it answered, want %v", worst, promised)
				}
			})
		}
	}
}

// An endpoint is healthy again within a second, however many group-versions it has.
func TestManyGroupVersionsAreBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ill atomic.Bool
		b, h := many(t, 500, false, func(w http.ResponseWriter, r *http.Request) {
			if ill.Load() {
				refuse(w, r)
			}
		})
		pass(2 * time.Second)
		ill.Store(true)
		h.set(refusing)
		pass(3 * time.Second)
		h.set(listening)
		pass(700 * time.Millisecond) // errors at first
		ill.Store(false)
		pass(time.Second)
		b.wantAll(t, "a second after it answers well", registry.Healthy)
	})
}

// If all nodes of a cluster are gone, probing them takes a limited share of a processor, and not a
// redial of each endpoint every 100 ms.
func TestManyThatAreDownAreNotHammered(t *testing.T) {
	// Twice as many as are probed every 100 ms, and far fewer goroutines than the race detector's
	// limit of 8,128.
	const endpoints, window = 800, 2 * time.Second
	for name, tc := range map[string]struct {
		set  func(*host, *backend)
		most int // a second
	}{
		"refused":        {func(h *host, _ *backend) { h.set(refusing) }, int(time.Second / dialShare)},
		"answered badly": {func(_ *host, s *backend) { s.status.Store(http.StatusForbidden) }, int(time.Second / probeShare)},
	} {
		t.Run(name, func(t *testing.T) {
			n := endpoints
			if name == "answered badly" {
				n = 200 // real handshakes
			}
			synctest.Test(t, func(t *testing.T) {
				ca := newAuthority(serverName)
				b := startBench(t, ca, copies(n))
				h, s := b.cable.host(at), newBackend()
				h.serve(t, ca, s.ServeHTTP)
				tc.set(h, s)
				b.run(t)
				pass(2 * time.Second) // all have failed
				before := b.dials()
				pass(window)
				if got := float64(b.dials()-before) / window.Seconds(); got > 1.2*float64(tc.most) {
					t.Errorf("%.0f probes a second of %d failing endpoints, want %d", got, n, tc.most)
				}
			})
		})
	}
}

// An endpoint is used again as soon, while many endpoints of another Service answer badly.
func TestBackBesideManyThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		b.until(t, at, registry.Unhealthy, 12*time.Second)
		pass(500 * time.Millisecond)
		s.status.Store(0)
		if took := b.until(t, at, registry.Healthy, time.Minute); took > 300*time.Millisecond {
			t.Errorf("used again %v after it answered", took)
		}
	})
}
