package backend

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
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

func quiet(cfg LocalConfig) LocalConfig {
	cfg.IdentityChanged, cfg.Signal = func() <-chan struct{} { return nil }, func(string, error) {}
	return cfg
}

func newLocal(t *testing.T, n *network, change func(*LocalConfig), servers ...string) *Local {
	t.Helper()
	cfg := quiet(LocalConfig{Servers: servers, Dial: n.dial, TLS: func(bool) (*tls.Config, error) { return n.trust() }})
	if change != nil {
		change(&cfg)
	}
	l := NewLocal(cfg)
	must.Run(t, l.Run)
	return l
}

func (l *Local) get(t *testing.T, p Pool, token string) (int, string, error) {
	t.Helper()
	return l.ask(t, http.MethodGet, p, token)
}

func (l *Local) ask(t *testing.T, method string, p Pool, token string) (int, string, error) {
	t.Helper()
	req := newRequest(t, method, "")
	req.Header.Set("Authorization", "Bearer "+token)
	return read(l.Upstream(p).RoundTrip(req, false, nil))
}

// A thousand invalid tokens cause no new connection (design §3): the unproven pool keeps its own.
// What needs HTTP/2 does not fall back to HTTP/1.1.
func TestLocalPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const well, old = place1, place2
		n := newNetwork(t)
		n.serve(well, protoH2, apiserver)
		n.serve(old, protoH1, apiserver)
		dials := map[bool]int{} // with our certificate, and without
		l := newLocal(t, n, func(cfg *LocalConfig) {
			inner := cfg.TLS
			cfg.TLS = func(certificate bool) (*tls.Config, error) {
				dials[certificate]++
				return inner(certificate)
			}
		}, well, old)
		l.Report(registry.Report{Endpoint: registry.Endpoint{Address: well, Health: registry.Healthy}})
		for _, p := range []Pool{PoolCertificate, PoolProven} {
			c := must.Get(dialWatched(t.Context(), l.Upstream(p).at(well)))(t)
			check.Same(t, true, l.Upstream(p).HTTP2(), "HTTP/2 of pool %d", p)
			_ = c.Close()
		}
		status, text := must.Get2(l.get(t, PoolUnproven, "good"))(t)
		check.Same(t, "200 HTTP/1.1 false", fmt.Sprint(status, " ", text, " ", l.Upstream(PoolUnproven).HTTP2()), "the unproven pool")
		for range 1000 {
			status, _ := must.Get2(l.get(t, PoolUnproven, "bad"))(t)
			check.Same(t, http.StatusUnauthorized, status, "status of a bad token")
		}
		check.Same(t, map[bool]int{true: 1, false: 2}, dials, "connections with a certificate, and without: proven and unproven")
		for _, p := range []Pool{PoolCertificate, PoolProven} {
			check.Same(t, engine.ReasonDial, reasonOf(check.Err(dialWatched(t.Context(), l.Upstream(p).at(old)))), "pool %d does not fall back to HTTP/1.1", p)
		}
		check.Same(t, true, l.Upstream(0) == nil && l.Upstream(PoolHealth+1) == nil, "the zero Pool, and one after the last, have no upstream")
	})
}

// If the only apiserver restarts within the wait of two seconds, no read fails, nor any write that
// was not sent. A request does not wait longer.
func TestLocalRestart(t *testing.T) {
	for _, tt := range []struct {
		method string
		back   time.Duration
		want   engine.Reason
		within time.Duration
	}{
		{http.MethodGet, 1500 * time.Millisecond, "", 1800 * time.Millisecond},
		{http.MethodPost, 1500 * time.Millisecond, "", 1800 * time.Millisecond},
		{http.MethodGet, time.Minute, engine.ReasonDial, defaultWait + 2*dialPause},
	} {
		t.Run(fmt.Sprint(tt.method, tt.back), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				s := n.serve(place1, protoH2, apiserver)
				l := newLocal(t, n, nil, place1)
				status, _ := must.Get2(l.get(t, PoolUnproven, "good"))(t)
				check.Same(t, http.StatusOK, status, "status before the restart")
				must.Do(t, s.Close())
				synctest.Wait()
				back := time.AfterFunc(tt.back, func() { n.serve(place1, protoH2, apiserver) })
				defer back.Stop()
				start := time.Now()
				_, _, err := l.ask(t, tt.method, PoolUnproven, "good")
				synctest.Wait()
				check.Same(t, tt.want, reasonOf(err), "why it failed: %v", err)
				check.Within(t, min(tt.back, defaultWait), tt.within, time.Since(start), "time")
				check.Same(t, false, err != nil && l.Ready() == nil, "ready without a reachable server")
			})
		})
	}
}

// After the time of a restart no request waits for a server that does not come back.
func TestLocalLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, newNetwork(t), nil, place1)
		for _, step := range []struct {
			health registry.Health
			after  time.Duration
			lost   bool
			waits  time.Duration
		}{
			{registry.Unhealthy, restart, false, defaultWait}, {registry.Unhealthy, time.Millisecond, true, 0}, {registry.Healthy, time.Hour, false, defaultWait},
			{registry.Unhealthy, restart, false, defaultWait},
		} {
			l.Report(registry.Report{Endpoint: registry.Endpoint{Address: place1, Health: step.health}})
			time.Sleep(step.after)
			start := time.Now()
			check.Same(t, step.lost, l.Lost(), "%+v: lost", step)
			check.Same(t, step.waits, l.Upstream(PoolProven).Plan(false, nil).Wait, "%+v: the wait over HTTP/2", step)
			_, _, err := l.get(t, PoolUnproven, "good")
			check.Same(t, fmt.Sprint(engine.ReasonDial, " ", step.waits), fmt.Sprint(reasonOf(err), " ", time.Since(start).Truncate(defaultWait)), "%+v: why it failed, and when", step)
		}
	})
}

// A server that is not ready gets no requests while another one is ready.
func TestLocalReport(t *testing.T) {
	const one, other = place1, place2
	l := newLocal(t, newNetwork(t), nil, one, other)
	for _, step := range []struct {
		registry.Endpoint
		preferred []string
		ready     bool
	}{
		{registry.Endpoint{Address: one, Health: registry.Healthy}, []string{one}, true},
		{registry.Endpoint{Address: other, Health: registry.Healthy}, []string{one, other}, true},
		{registry.Endpoint{Address: one, Health: registry.Unhealthy, Message: "[-]shutdown failed"}, []string{other}, true},
		// Never none.
		{registry.Endpoint{Address: other, Health: registry.Unhealthy, Message: "connection refused"}, []string{one, other}, false},
		{registry.Endpoint{Address: other, Health: registry.Unhealthy, Message: "[-]etcd failed"}, []string{one, other}, false},
		{registry.Endpoint{Address: one, Health: registry.Healthy}, []string{one}, true},
	} {
		l.Report(registry.Report{Endpoint: step.Endpoint})
		preferred := map[string]int{}
		for _, e := range l.Upstream(PoolProven).view.Load().preferred {
			preferred[e.address]++
		}
		check.Same(t, count(step.preferred), preferred, "preferred after %+v", step)
		check.Same(t, step.ready, l.Ready() == nil, "ready after %+v", step)
		is := l.servers.Load().find(step.Address).is
		check.Same(t, false, is.Since.IsZero(), "it is known since when %+v", is)
		is.Since = time.Time{}
		check.Same(t, step.Endpoint, is, "the server's state")
	}
}

// A log that is blocked holds up neither reports of health nor changes of the servers.
func TestLocalWhileTheLogIsBlocked(t *testing.T) {
	read, log := io.Pipe()
	defer read.Close()
	l := newLocal(t, newNetwork(t), func(cfg *LocalConfig) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) }, place1, place2)
	done := make(chan struct{})
	go func() {
		l.Report(registry.Report{Endpoint: registry.Endpoint{Address: place1, Health: registry.Healthy}})
		l.Follow([]string{place1})
		close(done)
	}()
	must.Come(t, 10*time.Second, "they wait for no line of log", done)
}

// Tokens are proven over the unproven pool, and hold a place in it meanwhile.
func TestProve(t *testing.T) {
	n := newNetwork(t)
	n.serve(place1, protoH2, apiserver)
	l := newLocal(t, n, nil, place1)
	from := bound.Stranger("10.0.0.1:1")
	for token, want := range map[string]int{"good": http.StatusOK, "bad": http.StatusUnauthorized} {
		check.Same(t, want, must.Get(l.Prove(t.Context(), token, from, nil))(t), "status of the token %q", token)
	}
	u := l.Upstream(PoolUnproven)
	check.Same(t, 0, u.inFlight.Held(), "places held")
	for range maxUnproven / 16 {
		_, ok := u.Acquire(from, false)
		check.Same(t, true, ok, "a connection gets its share of places")
	}
	check.Is(t, bound.ErrFull, check.Err(l.Prove(t.Context(), "good", from, nil)), "beyond its share")
	check.Same(t, http.StatusOK, must.Get(l.Prove(t.Context(), "good", bound.Stranger("10.0.0.1:2"), nil))(t), "status of another connection's")
}

// A restarted apiserver answers 403 before it is ready: after its connections are lost, other
// servers get the requests until a probe passes.
func TestLostConnectionsWaitForProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const restarted, other = place1, place2
		n := newNetwork(t)
		n.serve(other, protoH2, apiserver)
		s := n.serve(restarted, protoH2, apiserver)
		var signals signals
		l := newLocal(t, n, func(cfg *LocalConfig) {
			cfg.Signal = func(address string, err error) {
				if err != nil {
					signals.add(address)
				}
			}
		}, restarted, other)
		ask := func(times int) {
			t.Helper()
			for range times {
				status, _ := must.Get2(l.get(t, PoolUnproven, "good"))(t)
				check.Same(t, http.StatusOK, status, "status")
				time.Sleep(20 * time.Millisecond)
			}
		}
		ask(20)
		must.Do(t, s.Close())
		s = n.serve(restarted, protoH2, nil)
		synctest.Wait()
		check.Same(t, true, signals.count(restarted) > 0, "a probe was requested")
		check.Same(t, true, l.Upstream(PoolProven).endpoints[restarted].load() > 0, "another pool suspects the server")
		ask(100)
		check.Same(t, 0, s.hits.Load(), "requests of a server that may not be ready")
		l.Report(registry.Report{Endpoint: registry.Endpoint{Address: restarted, Health: registry.Healthy}, Began: time.Now()})
		ask(20)
		check.Same(t, true, s.hits.Load() > 0, "the server gets requests after it is ready")
	})
}

// What waits too long for a dial, as to a busy server, goes elsewhere. That is no loss, and moves no client.
func TestSlowDialMovesNoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.silent(place1, true)
		n.serve(place2, protoH1, nil)
		l := newLocal(t, n, func(cfg *LocalConfig) { cfg.First = true }, place1, place2)
		u, by := l.Upstream(PoolUnproven), l.Stay(t.Context())
		c := must.Get(u.DialUpgrade(t.Context(), by))(t)
		_ = c.Close()
		check.Same(t, place2, c.Address(), "where an upgrade goes")
		check.Same(t, 0, l.Upstream(PoolProven).endpoints[place1].load(), "what another pool suspects")
		status, _, err := read(u.RoundTrip(newRequest(t, http.MethodGet, ""), false, by))
		check.Same(t, "200 <nil>", fmt.Sprint(status, " ", err), "a request")
		check.Same(t, place1, by.at.Load().of[0].address, "where its client is")
		time.Sleep(dialTimeout) // the dial goes on without the request
		synctest.Wait()
	})
}

// A watch over HTTP/1.1, with a token that was not accepted before, ends when its server is hung.
func TestHungLocalApiserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(place1, protoH1, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		l := newLocal(t, n, nil, place1)
		res := must.Get(l.Upstream(PoolUnproven).RoundTrip(newRequest(t, http.MethodGet, ""), true, nil))(t)
		begun := time.Now()
		l.Report(registry.Report{Endpoint: registry.Endpoint{Address: place1, Health: registry.Unhealthy, Hung: true}})
		check.Is(t, net.ErrClosed, check.Err(io.ReadAll(res.Body)), "how it ends")
		check.Same(t, hungTime, time.Since(begun), "when it ends")
		must.Do(t, res.Body.Close())
	})
}
