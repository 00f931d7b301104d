package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Reviews and watches leave an apiserver that accepts connections and never answers, also those
// that already wait for it, and each server is verified by its own name.
func TestOwnClientsLeaveWhatHangs(t *testing.T) {
	var hangs atomic.Bool
	arrived, hang := make(chan struct{}), make(chan struct{})
	first := serverAt(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			close(arrived)
			<-hang
		}
		allow(w, r)
	})
	defer close(hang)
	second, dead := serverAt(t, "127.0.0.2", allow), serverAt(t, "127.0.0.3", allow)
	dead.Close()
	path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText("https://other.example:1", ca, ""))
	for _, bad := range []string{"http://127.0.0.1:1", "https://", "https://%"} {
		if _, _, _, err := clientConfig(path, []string{bad}); err == nil || !strings.Contains(err.Error(), "is not an https URL") {
			t.Errorf("--local-apiserver %s: %v", bad, err)
		}
	}
	kube, _, own, err := clientConfig(path, []string{dead.URL, first.URL, second.URL})
	must.Do(t, err)
	check.Same(t, -1, kube.QPS, "requests a second; negative is without a limit")
	f, review := reviewer(t, kube)
	one, two := first.Listener.Addr().String(), second.Listener.Addr().String()
	known := func(a, b registry.Health, connections int) {
		t.Helper()
		own.prefer([]registry.Endpoint{{Address: one, Health: a}, {Address: two, Health: b}})
		to := 0
		own.mu.Lock()
		defer own.mu.Unlock()
		for c := range own.open {
			if c.address == one {
				to++
			}
		}
		check.Same(t, connections, to, "connections to the first")
	}
	check.Same(t, one, review(), "at first, with one dead that nobody knows of")
	known(registry.Unhealthy, registry.Unhealthy, 1)
	hangs.Store(true)
	waits := make(chan string, 1)
	go func() { waits <- review() }()
	<-arrived
	known(registry.Unhealthy, registry.Healthy, 0)
	check.Same(t, two, <-waits, "what waited when the first hung")
	check.Same(t, two, review(), "when the first hangs")
	hangs.Store(false)
	known(registry.Healthy, registry.Healthy, 0)
	check.Same(t, two, review(), "when the first is well again: no watch goes back in time")
	own.first = true
	known(registry.Healthy, registry.Unhealthy, 0)
	known(registry.Healthy, registry.Healthy, 0)
	check.Same(t, one, review(), "with --local-apiserver-preference=first")
	known(registry.Unhealthy, registry.Healthy, 0)
	must.Get(f.reload(path, must.Get(os.ReadFile(path))(t)))(t)
	check.Same(t, two, review(), "after the kubeconfig has changed")
}
