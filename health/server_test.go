package health

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// servers is an entry without a group-version: the local apiservers.
func servers(addresses ...string) *registry.Entry {
	e := &registry.Entry{Name: "local-apiserver", Backend: &registry.Backend{ServerName: serverName}}
	for _, a := range addresses {
		e.Endpoints = append(e.Endpoints, registry.Endpoint{Address: a})
	}
	return e
}

func TestServersAreAskedWhetherTheyAreReady(t *testing.T) {
	ca := newAuthority(serverName)
	for _, tt := range []struct {
		code int
		alpn []string // nil for HTTP/2
		why  string   // empty if the probe passes
	}{
		{code: 200},
		{code: 401}, // concerns only our credential
		{code: 403},
		{code: 404, why: "404: [-]etcd failed"},
		{code: 500, why: "500: [-]etcd failed"},
		{code: 200, alpn: []string{"http/1.1"}, why: "tls: no application protocol"},
		{code: 200, alpn: []string{}, why: "does not speak HTTP/2"},
	} {
		path := ""
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			path = r.URL.Path
			http.Error(w, "[-]etcd failed", tt.code)
		}))
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.pair}}
		if s.EnableHTTP2 = tt.alpn == nil; s.EnableHTTP2 {
			s.StartTLS()
		} else {
			s.TLS.NextProtos = tt.alpn // StartTLS would add to none
			s.Listener = tls.NewListener(s.Listener, s.TLS)
			s.Start()
		}
		o, _ := probeEntry(t, servers(s.Listener.Addr().String()), func() (*tls.Config, error) { return &tls.Config{RootCAs: ca.roots}, nil })
		closeConn(o.conn)
		s.Close()
		switch {
		case tt.alpn == nil && path != "/readyz", tt.alpn != nil && path != "":
			t.Errorf("%d over %q: requested %q", tt.code, tt.alpn, path)
		case (o.err == nil) != (tt.why == ""):
			t.Errorf("%d: %v", tt.code, o.err)
		case o.err != nil && !strings.Contains(o.err.Error(), tt.why):
			t.Errorf("%d: %v, want %q in it", tt.code, o.err, tt.why)
		}
	}
}

// The design's goals hold for an apiserver as for an endpoint of an extension server, without
// traffic.
func TestServersIdle(t *testing.T) {
	for _, tt := range []struct {
		name       string
		fail       func(*host, *backend)
		out, again time.Duration // at most
	}{
		{"killed", func(h *host, _ *backend) { h.set(refusing) }, time.Second, time.Second},
		{"hung", func(_ *host, s *backend) { s.hung.Store(true) }, 10 * time.Second, 6 * time.Second},
		{"unready", func(_ *host, s *backend) { s.status.Store(500) }, 4*time.Second + 200*time.Millisecond, 700 * time.Millisecond},
		{"without a network", func(h *host, _ *backend) { h.set(vanished) }, 7 * time.Second, 3 * time.Second}, // 2 s less if the kernel notices (keep-alive)
	} {
		bubble(t, tt.name, func(t *testing.T) {
			s := newBackend()
			b, h := served(t, []*registry.Entry{servers(at)}, s.ServeHTTP)
			worst, worstBack := time.Duration(0), time.Duration(0)
			b.until(t, at, registry.Healthy, time.Minute)
			for i := range 20 {
				pass(time.Duration(i) * 731 * time.Millisecond)
				tt.fail(h, s)
				worst = max(worst, b.until(t, at, registry.Unhealthy, time.Minute))
				s.hung.Store(false)
				s.status.Store(0)
				h.set(listening)
				worstBack = max(worstBack, b.until(t, at, registry.Healthy, time.Minute))
			}
			if worst > tt.out || worstBack > tt.again {
				t.Errorf("out after %s, want %s; back after %s, want %s", worst, tt.out, worstBack, tt.again)
			}
		})
	}
}

// After a hint the next probe is reported, even if nothing has changed.
func TestHintsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := served(t, []*registry.Entry{servers(at)}, newBackend().ServeHTTP)
		pass(time.Second)
		b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost"))
		synctest.Wait()
		if got := b.notes.all(); len(got) != 2 || got[1].Report != got[0].Report {
			t.Errorf("reported %+v, want the first one again", got)
		}
	})
}

// A probe that began before a hint does not answer it; the next one does.
func TestHintsDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBackend()
		b, _ := served(t, []*registry.Entry{servers(at)}, s.ServeHTTP)
		pass(time.Second)
		s.delay.Store(int64(600 * time.Millisecond))
		for _, step := range []struct {
			hint  bool
			lasts time.Duration
			want  int // reports by then
		}{{true, 300 * time.Millisecond, 1}, {true, 400 * time.Millisecond, 1}, {false, 600 * time.Millisecond, 2}} {
			if step.hint {
				b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost"))
			}
			if pass(step.lasts); len(b.notes.all()) != step.want {
				t.Errorf("reported %+v, want %d", b.notes.all(), step.want)
			}
		}
	})
}

// After a hint and a failed probe, the next probe that passes is reported.
func TestHintsOutlastAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBackend()
		b, _ := served(t, []*registry.Entry{servers(at)}, s.ServeHTTP)
		pass(time.Second)
		s.status.Store(500)
		b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost"))
		synctest.Wait()
		if got := b.notes.all(); len(got) != 1 {
			t.Errorf("reported %+v after one failure, want only the first one", got)
		}
		s.status.Store(0)
		pass(time.Second)
		if got := b.notes.all(); len(got) != 2 || got[1].Report != got[0].Report {
			t.Errorf("reported %+v, want the first one again", got)
		}
	})
}

// If every third request fails, on any connection, the verdict stays.
func TestServersDoNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b, _ := served(t, []*registry.Entry{servers(at)}, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1)%3 == 0 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		pass(10 * time.Minute)
		if got := b.notes.all(); len(got) != 1 || got[0].Health != registry.Healthy {
			t.Errorf("after ten minutes: %+v", got)
		}
		if n := asked.Load(); n > 10*60 {
			t.Errorf("%d requests in ten minutes", n)
		}
	})
}

// A server that comes back and refuses us, though it once accepted us, has not read its rules yet.
// One that has never accepted us is healthy, and so is one that goes on refusing.
func TestRulesAreNotReadYet(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after int64         // status before and after the restart
		out           time.Duration // how long it is unhealthy once it is back
	}{
		{"refused", 0, http.StatusForbidden, unread},
		{"with another credential", 0, http.StatusUnauthorized, 0},
		{"never accepted", http.StatusForbidden, http.StatusForbidden, 0},
		{"accepted", 0, 0, 0},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			s := newBackend()
			s.status.Store(tt.before)
			b, h := served(t, []*registry.Entry{servers(at)}, s.ServeHTTP)
			b.until(t, at, registry.Healthy, time.Minute)
			h.set(refusing)
			b.until(t, at, registry.Unhealthy, time.Minute)
			pass(time.Minute)
			s.status.Store(tt.after)
			h.set(listening)
			if took := b.until(t, at, registry.Healthy, 2*time.Minute); took < tt.out-lastRetry || took > tt.out+lastRetry {
				t.Errorf("healthy after %v, want %v", took, tt.out)
			}
		})
	}
}
