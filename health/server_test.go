package health

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

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
		o, _ := probeOnce(t, servers(s.Listener.Addr().String()), ca.trust)
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

// After a hint the next probe that passes is reported, even if nothing has changed. A probe that
// began before the hint does not answer it, nor does one that fails.
func TestHintsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		b, _, s := healthy(t, []*registry.Entry{servers(at)})
		pass(time.Second)
		for _, step := range []struct {
			name   string
			hint   bool
			status int64
			takes  time.Duration // each answer
			lasts  time.Duration
			want   int // reports by then
		}{
			{"a hint", true, 200, 0, 0, 2},
			{"nothing", false, 200, 0, 9000 * ms, 2},
			{"a hint, and a failure", true, 500, 0, 0, 2},
			{"well again", false, 200, 0, 1000 * ms, 3},
			{"a slow probe", true, 200, 600 * ms, 300 * ms, 3},
			{"a hint during it", true, 200, 600 * ms, 400 * ms, 3},
			{"the next one", false, 200, 600 * ms, 600 * ms, 4},
		} {
			s.status.Store(step.status)
			s.delay.Store(int64(step.takes))
			if step.hint {
				b.alarm()
			}
			pass(step.lasts)
			got := b.notes.all()
			check.Same(t, step.want, len(got), "%s: reports", step.name)
			check.Same(t, got[0].Report, got[len(got)-1].Report, "the last report, which repeats the first")
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
			b, h := serve(t, []*registry.Entry{servers(at)}, s.ServeHTTP)
			b.until(t, registry.Healthy, time.Minute)
			h.set(refusing)
			b.until(t, registry.Unhealthy, time.Minute)
			pass(time.Minute)
			s.status.Store(tt.after)
			h.set(listening)
			if took := b.until(t, registry.Healthy, 2*time.Minute); took < tt.out-lastRetry || took > tt.out+lastRetry {
				t.Errorf("healthy after %v, want %v", took, tt.out)
			}
		})
	}
}
