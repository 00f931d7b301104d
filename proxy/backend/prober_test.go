package backend

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A local apiserver's health follows the rules of an extension server's: the design's goals hold for it while nothing asks for it.
func TestLocalHealthIdle(t *testing.T) {
	const one, other = "10.0.0.1:6443", "10.0.0.2:6443"
	for _, tt := range []struct {
		name       string
		fail       func(n *memoryNet, s *memoryServer, ready *atomic.Int32)
		out, again time.Duration // at most
	}{
		{"killed", func(_ *memoryNet, s *memoryServer, _ *atomic.Int32) { s.stop() }, time.Second, time.Second},
		{"hung", func(_ *memoryNet, _ *memoryServer, ready *atomic.Int32) { ready.Store(hanging) }, 10 * time.Second, 6 * time.Second},
		{"unready", func(_ *memoryNet, _ *memoryServer, ready *atomic.Int32) { ready.Store(http.StatusInternalServerError) }, 4 * time.Second, 700 * time.Millisecond},
		{"without a network", func(n *memoryNet, s *memoryServer, _ *atomic.Int32) {
			s.freeze()
			n.mute(one, true)
		}, 7 * time.Second, 3 * time.Second}, // 2 s less where the kernel finds out (keep-alive)
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemoryNet(t)
				var ready atomic.Int32
				answer := func(w http.ResponseWriter, r *http.Request) {
					if code := int(ready.Load()); r.URL.Path == "/readyz" && code == hanging {
						<-r.Context().Done()
					} else if r.URL.Path == "/readyz" && code != 0 {
						w.WriteHeader(code)
					}
				}
				n.serve(other, protoH2, apiserver)
				worst, worstBack := time.Duration(0), time.Duration(0)
				s := n.serve(one, protoH2, answer)
				l := newLocal(t, func(cfg *LocalConfig) { cfg.Dial = n.dial }, one, other)
				for i := range 20 {
					l.until(t, one, registry.Healthy, time.Minute)
					time.Sleep(time.Duration(i) * 731 * time.Millisecond)
					tt.fail(n, s, &ready)
					worst = max(worst, l.until(t, one, registry.Unhealthy, time.Minute))
					ready.Store(0)
					n.mute(one, false)
					s.stop()
					s = n.serve(one, protoH2, answer)
					worstBack = max(worstBack, l.until(t, one, registry.Healthy, time.Minute))
				}
				t.Logf("worst of 20: out after %s, back after %s", worst, worstBack)
				if worst > tt.out || worstBack > tt.again {
					t.Errorf("out after %s, want %s; back after %s, want %s", worst, tt.out, worstBack, tt.again)
				}
				n.stopAll()
			})
		})
	}
}

// hanging is no status: /readyz is not answered.
const hanging = -1

// until returns how long it takes until a server's health is so.
func (l *Local) until(t *testing.T, address string, want registry.Health, limit time.Duration) time.Duration {
	t.Helper()
	for from := time.Now(); time.Since(from) <= limit; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		for _, e := range l.Servers() {
			if e.Address == address && e.Health == want {
				return time.Since(from)
			}
		}
	}
	t.Fatalf("%s is not %d after %s", address, want, limit)
	return 0
}

// A lost probe changes nothing, and one that is late is not waited for by the next.
func TestLocalProbesDoNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		var asked atomic.Int64
		n.serve("10.0.0.1:6443", protoH2, func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1)%3 == 0 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		l := newLocal(t, func(cfg *LocalConfig) { cfg.Dial = n.dial }, "10.0.0.1:6443")
		l.until(t, "10.0.0.1:6443", registry.Healthy, time.Second)
		since := l.Servers()[0].Since
		time.Sleep(10 * time.Minute)
		if e := l.Servers()[0]; e.Health != registry.Healthy || !e.Since.Equal(since) {
			t.Errorf("after ten minutes in which every third question was answered 500: %+v", e)
		}
		if got := asked.Load(); got > 10*60 {
			t.Errorf("%d questions in ten minutes", got)
		}
		n.stopAll()
	})
}
