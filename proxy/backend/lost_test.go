package backend

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// An apiserver that has begun anew answers before it is ready, with 403: after its connections were
// lost requests go to another until a probe has looked.
func TestLostConnectionsWaitForProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		const restarted, other = "10.0.0.1:6443", "10.0.0.2:6443"
		n.serve(other, protoH2, apiserver)
		s := n.serve(restarted, protoH2, apiserver)
		var told atomic.Int32
		l := newLocal(t, func(cfg *LocalConfig) {
			cfg.Dial = n.dial
			cfg.Signal = func(address string, err error) {
				if address == restarted && err != nil {
					told.Add(1)
				}
			}
		}, restarted, other)
		ask := func() {
			t.Helper()
			if status, _, err := l.get(t, PoolUnproven, "good"); err != nil || status != http.StatusOK {
				t.Errorf("got %d, %v", status, err)
			}
		}
		for range 20 {
			ask()
		}
		synctest.Wait()
		s.stop()
		var begun atomic.Int32
		n.serve(restarted, protoH2, func(http.ResponseWriter, *http.Request) { begun.Add(1) })
		synctest.Wait()
		if told.Load() == 0 {
			t.Error("nobody was asked for a probe")
		}
		for range 100 {
			ask()
			time.Sleep(20 * time.Millisecond)
		}
		if n := begun.Load(); n > 0 {
			t.Errorf("%d requests reached a server that may not be ready", n)
		}
		l.Report(restarted, registry.Healthy, "")
		l.Report(other, registry.Healthy, "")
		for range 20 {
			ask()
		}
		if begun.Load() == 0 {
			t.Error("it gets no requests now that it is ready")
		}
		n.stopAll()
	})
}
