package backend

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// apiserver answers like kube-apiserver, as far as pools notice: 401 with Connection: close to
// HTTP/2 requests without a user or a valid token.
func apiserver(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/readyz" {
		if r.Header.Get("X-Remote-User") != "system:kube-aggregator" {
			w.WriteHeader(http.StatusForbidden)
		}
		return
	}
	if r.Header.Get("X-Remote-User") == "" && r.Header.Get("Authorization") != "Bearer good" {
		if r.ProtoMajor == 2 {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = io.WriteString(w, r.Proto)
}

func newLocal(t *testing.T, change func(*LocalConfig), servers ...string) *Local {
	t.Helper()
	trust := trusting(t)
	cfg := LocalConfig{Dial: new(net.Dialer).DialContext, TLS: func(bool) (*tls.Config, error) { return trust() }}
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, "https://"+s)
	}
	if change != nil {
		change(&cfg)
	}
	l := must.Get(NewLocal(cfg))(t)
	must.Run(t, l.Run)
	return l
}

func (l *Local) get(t *testing.T, p Pool, token string) (int, string, error) {
	t.Helper()
	req := newRequest(t, http.MethodGet, "")
	req.Header.Set("Authorization", "Bearer "+token)
	return read(l.Upstream(p).RoundTrip(req, false))
}

// A thousand invalid tokens cause no new connection (design §3): the unproven pool keeps its own.
func TestLocalPools(t *testing.T) {
	s := newServer(t, protoH2, apiserver)
	certificates := make(chan bool, 100)
	l := newLocal(t, func(cfg *LocalConfig) {
		inner := cfg.TLS
		cfg.TLS = func(certificate bool) (*tls.Config, error) {
			certificates <- certificate
			return inner(certificate)
		}
	}, s.address)
	for _, p := range []Pool{PoolCertificate, PoolProven} {
		c, err := l.Upstream(p).dialH2(t.Context(), s.address, nil)
		if err != nil || !l.Upstream(p).HTTP2() {
			t.Fatalf("pool %d: got %v, HTTP/2 is %v", p, err, l.Upstream(p).HTTP2())
		}
		_ = c.Close()
	}
	if status, text, err := l.get(t, PoolUnproven, "good"); err != nil || status != http.StatusOK || text != "HTTP/1.1" || l.Upstream(PoolUnproven).HTTP2() {
		t.Errorf("the unproven pool: got %d %q %v", status, text, err)
	}
	if l.Upstream(0) != nil || l.Upstream(PoolHealth+1) != nil {
		t.Error("the zero Pool, or one after the last, has an upstream")
	}
	for range 1000 {
		if status, _, err := l.get(t, PoolUnproven, "bad"); err != nil || status != http.StatusUnauthorized {
			t.Fatalf("a bad token: got %d, %v", status, err)
		}
	}
	close(certificates)
	n := map[bool]int{}
	for c := range certificates {
		n[c]++
	}
	if n[true] != 1 || n[false] != 2 { // proven and unproven
		t.Errorf("%d connections with a certificate, %d without; want 1 and 2", n[true], n[false])
	}
	old := newServer(t, protoH1, apiserver)
	l = newLocal(t, func(cfg *LocalConfig) { cfg.Wait = -1 }, old.address)
	for _, p := range []Pool{PoolCertificate, PoolProven} {
		if _, err := l.Upstream(p).dialH2(t.Context(), old.address, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("pool %d falls back to HTTP/1.1: got %v, want ErrUnreachable", p, err)
		}
	}
}

func TestServerAddress(t *testing.T) {
	for _, tt := range []struct{ server, want string }{
		{"https://10.0.0.1:6443", "10.0.0.1:6443"},
		{"https://kubernetes.default.svc", "kubernetes.default.svc:443"},
		{"https://[fd00::1]:6443/", "[fd00::1]:6443"},
		{"http://10.0.0.1:6443", ""},
		{"https://user@10.0.0.1", ""},
		{"https://10.0.0.1/prefix", ""},
		{"10.0.0.1:6443", ""},
		{"https://", ""},
	} {
		got, err := serverAddress(tt.server)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q: got %q, %v, want %q", tt.server, got, err, tt.want)
		}
	}
}

// If the only apiserver restarts within the wait, no read fails, nor any write that was not sent.
func TestLocalRestart(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemoryNet(t)
				s := n.serve("10.0.0.1:6443", protoH2, apiserver)
				l := newLocal(t, func(cfg *LocalConfig) { cfg.Dial = n.dial }, "10.0.0.1:6443")
				if status, _, err := l.get(t, PoolUnproven, "good"); err != nil || status != http.StatusOK {
					t.Fatalf("got %d, %v", status, err)
				}
				s.stop()
				synctest.Wait()
				time.AfterFunc(1500*time.Millisecond, func() { n.serve("10.0.0.1:6443", protoH2, apiserver) })
				start := time.Now()
				req := newRequest(t, method, "")
				req.Header.Set("Authorization", "Bearer good")
				res := must.Get(l.Upstream(PoolUnproven).RoundTrip(req, false))(t)
				_, _ = io.Copy(io.Discard, res.Body) // otherwise both ends close at once, and each waits for the other to read
				_ = res.Body.Close()
				synctest.Wait()
				if took := time.Since(start); took < 1500*time.Millisecond || took > 1800*time.Millisecond {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// Without a reachable server a request waits two seconds, not longer.
func TestLocalGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		l := newLocal(t, func(cfg *LocalConfig) { cfg.Dial = n.dial }, "10.0.0.1:6443")
		start := time.Now()
		_, _, err := l.get(t, PoolUnproven, "good")
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("got %v, want ErrUnreachable", err)
		}
		if took := time.Since(start); took < defaultWait || took > defaultWait+2*waitPause {
			t.Errorf("gave up after %v, want %v", took, defaultWait)
		}
		if l.Ready() == nil {
			t.Error("Ready without a reachable server")
		}
	})
}

// A server that is not ready gets no requests while another one is ready.
func TestLocalReport(t *testing.T) {
	const one, other = "10.0.0.1:6443", "10.0.0.2:6443"
	n := newMemoryNet(t)
	l := newLocal(t, func(cfg *LocalConfig) { cfg.Dial = n.dial }, one, other)
	for _, step := range []struct {
		address   string
		health    registry.Health
		message   string
		preferred []string
		ready     bool
	}{
		{one, registry.Healthy, "", []string{one}, true},
		{other, registry.Healthy, "", []string{one, other}, true},
		{one, registry.Unhealthy, "[-]shutdown failed", []string{other}, true},
		{other, registry.Unhealthy, "connection refused", []string{one, other}, false}, // never none
		{one, registry.Healthy, "", []string{one}, true},
	} {
		l.Report(step.address, step.health, step.message)
		var preferred []string
		for _, e := range l.Upstream(PoolProven).view.Load().preferred {
			preferred = append(preferred, e.address)
		}
		slices.Sort(preferred)
		if !slices.Equal(preferred, step.preferred) || (l.Ready() == nil) != step.ready {
			t.Errorf("%s %d: preferred %v, ready: %v", step.address, step.health, preferred, l.Ready())
		}
		for _, e := range l.Servers() {
			if e.Address == step.address && (e.Health != step.health || e.Message != step.message || e.Since.IsZero()) {
				t.Errorf("after %+v: %+v", step, e)
			}
		}
	}
}

// Tokens are proven over the unproven pool, and hold a place in it meanwhile.
func TestProve(t *testing.T) {
	s := newServer(t, protoH2, apiserver)
	l := newLocal(t, nil, s.address)
	from := bound.Stranger("10.0.0.1:1")
	for token, want := range map[string]int{"good": http.StatusOK, "bad": http.StatusUnauthorized} {
		if status, err := l.Prove(t.Context(), token, from); err != nil || status != want {
			t.Errorf("token %q: got %d, %v, want %d", token, status, err, want)
		}
	}
	u := l.Upstream(PoolUnproven)
	check.Same(t, 0, u.inFlight.Held(), "places held")
	for range maxUnproven / 16 {
		if _, ok := u.Acquire(from, false); !ok {
			t.Fatal("a connection does not get its share of places")
		}
	}
	if _, err := l.Prove(t.Context(), "good", from); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond its share: got %v, want ErrBusy", err)
	}
	if status, err := l.Prove(t.Context(), "good", bound.Stranger("10.0.0.1:2")); status != http.StatusOK {
		t.Errorf("another connection: got %d, %v", status, err)
	}
}

// A restarted apiserver answers 403 before it is ready: after its connections are lost, other
// servers get the requests until a probe passes.
func TestLostConnectionsWaitForProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		const restarted, other = "10.0.0.1:6443", "10.0.0.2:6443"
		n.serve(other, protoH2, apiserver)
		s := n.serve(restarted, protoH2, apiserver)
		var signals atomic.Int32
		l := newLocal(t, func(cfg *LocalConfig) {
			cfg.Dial = n.dial
			cfg.Signal = func(address string, err error) {
				if address == restarted && err != nil {
					signals.Add(1)
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
		if signals.Load() == 0 {
			t.Error("no probe was requested")
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
			t.Error("the server gets no requests after it is ready")
		}
	})
}
