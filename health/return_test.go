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

// An extension server that comes back answers 403 or 500 until its informers have synced. It is
// served again at once after that, however long it was down.
func TestServedAgainAfterARestart(t *testing.T) {
	const promised = 300 * time.Millisecond
	for _, down := range []time.Duration{0, 100 * time.Millisecond, 2 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute} {
		for _, status := range []int{http.StatusForbidden, http.StatusInternalServerError} {
			bubble(t, fmt.Sprintf("%v, then %d", down, status), func(t *testing.T) {
				b, h, s := single(t)
				worst := time.Duration(0)
				for syncing := 100 * time.Millisecond; syncing <= 600*time.Millisecond; syncing += 50 * time.Millisecond {
					time.Sleep(time.Minute + syncing) // any moment between two probes
					s.status.Store(int64(status))
					h.set(refusing)
					time.Sleep(down)
					h.set(listening)
					time.Sleep(syncing)
					s.status.Store(0)
					worst = max(worst, b.until(t, at, registry.Healthy, time.Minute))
				}
				if worst > promised {
					t.Errorf("served again %v after it would answer, want %v", worst, promised)
				}
			})
		}
	}
}

// However many group-versions it has, one endpoint is back within a second.
func TestManyGroupVersionsAreBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ill atomic.Bool
		b, h := many(t, 500, false, func(w http.ResponseWriter, r *http.Request) {
			if ill.Load() {
				refuse(w, r)
			}
		})
		time.Sleep(2 * time.Second)
		ill.Store(true)
		h.set(refusing)
		time.Sleep(3 * time.Second)
		h.set(listening)
		time.Sleep(700 * time.Millisecond) // it answers badly at first
		ill.Store(false)
		time.Sleep(time.Second)
		b.wantAll(t, "a second after it answers well", registry.Healthy)
	})
}

// A cluster whose nodes are gone costs a bounded part of a processor, not one redial for each
// endpoint every 100 ms.
func TestManyThatAreDownAreNotHammered(t *testing.T) {
	// Twice as many as are asked every 100 ms, and far fewer goroutines than the 8,128 that the
	// race detector knows.
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
				time.Sleep(2 * time.Second) // all have failed
				before := b.dials()
				time.Sleep(window)
				if got := float64(b.dials()-before) / window.Seconds(); got > 1.2*float64(tc.most) {
					t.Errorf("%.0f probes a second of %d that fail, want %d", got, n, tc.most)
				}
			})
		})
	}
}
