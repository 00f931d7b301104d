package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
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
	second := serverAt(t, "127.0.0.2", allow)
	// The kubeconfig's proxy is not used: only our addresses are dialled.
	text := strings.Replace(kubeconfigText("https://other.example:1", ca, ""), `"server"`, `"proxy-url":"http://127.0.0.1:1","server"`, 1)
	path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), text)
	for given, want := range map[string]string{ // a manifest cannot write brackets around $(HOST_IP)
		"https://fd00::1:6443": "[fd00::1]:6443", "https://[fd00::1]:6443": "[fd00::1]:6443", "https://192.0.2.1:6443/": "192.0.2.1:6443",
		"https://fd00::1:6443/": "[fd00::1]:6443", "https://fd00::1:https": "", "https://[fd00::1]": "[fd00::1]:443", "https://kube.example": "kube.example:443",
		"http://127.0.0.1:1": "", "https://": "", "https://%": "", "10.0.0.1:6443": "", "https://user@10.0.0.1": "", "https://10.0.0.1/prefix": "",
	} {
		if _, addresses, _, err := clientConfig(path, []string{given}, false); strings.Join(addresses, "") != want || (err == nil) != (want != "") {
			t.Errorf("--local-apiserver %s: %v %v, want %q", given, addresses, err, want)
		}
	}
	servers := []string{"https://127.0.0.3:1", first.URL, second.URL, first.URL + "/"}
	kube, addresses, own, err := clientConfig(path, servers, false)
	must.Do(t, err)
	check.Same(t, 3, len(addresses), "servers, of which one is named twice")
	check.Same(t, -1, kube.QPS, "requests a second; negative is without a limit")
	one, two := first.Listener.Addr().String(), second.Listener.Addr().String()
	f, review := reviewer(t, kube)
	known := func(a, b registry.Health, connections int) { // to the first; nothing is kept of one that has ended
		t.Helper()
		own.prefer([]registry.Endpoint{{Address: one, Health: a}, {Address: two, Health: b}})
		must.Soon(t, 10*time.Second, "connections to the first", func() bool {
			n := 0
			for c := range own.open.Range {
				if c.(*ownConn).address == one {
					n++
				}
			}
			return n == connections
		})
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
	must.Get(f.reload(path))(t)
	check.Same(t, two, review(), "after the kubeconfig has changed")
}

// A request that times out at the preferred server sends later ones to another, before probes have noticed anything:
// a Lease does not wait for them. One whose caller has left says nothing. One that is answered with 401 does, too: a
// server may not know yet the key that has signed our token, or the CA of our certificate.
func TestOwnClientsLeaveWhatTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, asked, status := &apiservers{first: true}, "", 0
		own.order.Store(&[]string{"one", "two"})
		to := own.wrap(promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			if asked = r.URL.Host; asked == "two" || status > 0 {
				return &http.Response{StatusCode: status, Body: http.NoBody}, nil
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}))
		two := registry.Endpoint{Address: "two", Health: registry.Healthy}
		for i, want := range []string{"one", "one", "two", "two", "one", "one", "one", "one", "two", "one"} {
			switch i {
			case 5: // there is no other any more
				two.Health = registry.Unhealthy
			case 7: // both refuse us
				two.Health, status = registry.Healthy, http.StatusUnauthorized
			}
			if i < 6 || i == 7 { // and nothing prefers one before the next request
				own.prefer([]registry.Endpoint{{Address: "one", Health: registry.Healthy}, two})
			}
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			if i == 0 {
				cancel()
			}
			ask := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://x", http.NoBody))(t)
			if res, err := to.RoundTrip(ask); err == nil {
				_ = res.Body.Close()
			}
			check.Same(t, want, asked, "server asked by request %d", i)
			cancel()
			time.Sleep(5 * time.Second)
		}
	})
}

// Names that cannot be resolved, because DNS is away, do not keep a process whose ports are open from serving.
func TestStartWithoutDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, begun := &kube{servers: []string{"a.example.com:6443", "b.example.com:6443"}}, time.Now()
		k.lookUp = func(ctx context.Context, _, _ string) ([]net.IP, error) { <-ctx.Done(); return nil, ctx.Err() }
		must.Do(t, k.refuseSelf(t.Context(), &reach.Rules{}))
		check.Same(t, 2*time.Second, time.Since(begun), "the time for two names")
	})
}

// Requests to local apiservers that are refused at a limit are told by status, too: no APIService has it.
func TestLimitsOfLocalServers(t *testing.T) {
	k := &kube{}
	k.pools = backend.NewLocal(backend.LocalConfig{
		Servers: []string{"10.0.0.1:6443"}, TLS: k.tls, IdentityChanged: func() <-chan struct{} { return nil }, Dial: k.own.dial, Signal: func(string, error) {},
	})
	check.Same(t, 0, len(k.limits())+len((*kube)(nil).limits()), "limits at rest, and without a local apiserver")
	k.pools.Upstream(backend.PoolProven).Refuse(bound.Source{User: "jane"}, true)
	check.Has(t, strings.Join(k.limits(), "\n"), "local apiservers: limit sessions", "1 requests got 429", `user "jane"`)
}
