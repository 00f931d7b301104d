package backend

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An apiserver that has begun anew answers before it is ready, with 403: after its connections were lost requests go to
// another until a probe has looked.
func TestLostConnectionsWaitForProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		const restarted, other = "10.0.0.1:6443", "10.0.0.2:6443"
		n.serve(other, protoH2, apiserver)
		s := n.serve(restarted, protoH2, apiserver)
		l := newLocal(t, func(cfg *LocalConfig) { cfg.Dial = n.dial }, restarted, other)
		for range 20 {
			if status, _, err := l.get(t, PoolUnproven, "good"); err != nil || status != http.StatusOK {
				t.Fatalf("got %d, %v", status, err)
			}
		}
		synctest.Wait()
		s.stop()
		var early, late atomic.Int32
		begun := time.Now()
		n.serve(restarted, protoH2, func(w http.ResponseWriter, r *http.Request) {
			ready := time.Since(begun) > 3*time.Second
			switch {
			case r.URL.Path == "/readyz" && !ready:
				time.Sleep(800 * time.Millisecond)
				w.WriteHeader(http.StatusInternalServerError)
			case r.URL.Path == "/readyz":
			case !ready:
				early.Add(1)
				w.WriteHeader(http.StatusForbidden)
			default:
				late.Add(1)
			}
		})
		synctest.Wait()
		for range 100 {
			if status, _, err := l.get(t, PoolUnproven, "good"); err != nil || status != http.StatusOK {
				t.Errorf("got %d, %v", status, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if n := early.Load(); n > 0 {
			t.Errorf("%d requests reached a server that was not ready", n)
		}
		time.Sleep(20 * time.Second)
		for range 20 {
			if status, _, err := l.get(t, PoolUnproven, "good"); err != nil || status != http.StatusOK {
				t.Errorf("got %d, %v", status, err)
			}
		}
		if late.Load() == 0 {
			t.Error("it gets no requests now that it is ready")
		}
		n.stopAll()
	})
}
