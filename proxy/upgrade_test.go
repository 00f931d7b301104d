package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A line of the access log says how its request ended and how many bytes were sent, over any
// protocols.
func TestEndings(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, http1 := range []bool{false, true} {
		access, seen := newLog(t)
		begun := make(chan struct{}, 1)
		w := newWorld(t, worldConfig{access: access, remoteHTTP1: http1, remote: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case strings.HasSuffix(r.URL.Path, "/breaks"):
				panic(http.ErrAbortHandler)
			case strings.HasSuffix(r.URL.Path, "/hangs"):
				if r.URL.RawQuery == "" { // one with a deadline need not arrive before it
					begun <- struct{}{}
				}
				<-r.Context().Done()
			}
		}})
		everyWay(t, func(t *testing.T, proto string) {
			c := w.httpClient(t, proto, nil)
			for _, tc := range []struct {
				name   string
				status float64
				ends   []string
				leaves bool
			}{
				{"whole", 200, []string{"complete"}, false}, {"breaks", 503, []string{"lost", "reset"}, false}, {"hangs?timeout=3s", 504, []string{"deadline"}, false},
				{"hangs", 499, []string{"client-lost", "client-reset"}, true},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				r := w.as(t, "bob", "POST", remoteGV+"/widgets/"+tc.name, strings.NewReader("hello")).WithContext(ctx)
				if tc.leaves {
					go func() { <-begun; cancel() }() // ends with the request
				}
				if res, err := c.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
				cancel()
				line := <-seen
				got := struct {
					Status, In, Waited float64
					End, Endpoint      string
				}{}
				must.Do(t, json.Unmarshal([]byte(line), &got))
				ended := false
				for _, end := range tc.ends {
					ended = ended || got.End == end
				}
				if !ended || got.In != 5 || got.Endpoint != w.remote.Listener.Addr().String() && (!http1 || tc.status == 200) {
					t.Errorf("backend over HTTP/1.1 %v, %s: %s", http1, tc.name, line)
				}
				if got.Status != tc.status && got.Status != 502 {
					t.Errorf("backend over HTTP/1.1 %v, %s: status %v, want %v", http1, tc.name, got.Status, tc.status)
				}
			}
		})
	}
}

// The line of an upgraded session counts all its bytes in both directions.
func TestSessionLine(t *testing.T) {
	access, seen := newLog(t)
	w := newWorld(t, worldConfig{access: access, remote: switching})
	_, br, conn := w.raw(t, "GET "+remoteGV+"/x", websocket+"early")
	must.Get(br.Discard(len("early")))(t)
	must.Do(t, conn.Close())
	if line := <-seen; !strings.Contains(line, `"status":101,"bytes":5,"in":5,`) || !strings.Contains(line, `"endpoint":"`+w.remote.Listener.Addr().String()) {
		t.Error(line)
	}
}

// Upgrades are limited in total, whatever their backend, and one user leaves room for others.
func TestSessionsAreBounded(t *testing.T) {
	w := newWorld(t, worldConfig{local: switching, remote: switching})
	w.proxy.cfg.MaxSessions = 4
	open := func(user, path string, want int) net.Conn {
		t.Helper()
		res, _, conn := w.say(t, nil, "GET "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-"+user+"\r\n"+websocket)
		check.Same(t, want, res.StatusCode, "%s's upgrade of %s", user, path)
		return conn
	}
	first := open("bob", "/api/v1/x", 101)
	open("bob", "/api/v1/x", 101)
	open("bob", remoteGV+"/x", 101)
	open("bob", "/api/v1/x", 429)
	open("bob", remoteGV+"/x", 429)
	open("carol", "/api/v1/x", 101)
	open("carol", "/api/v1/x", 429)
	must.Do(t, first.Close())
	must.Soon(t, 10*time.Second, "the place of an ended session", func() bool { return w.proxy.sessionPlaces.Held() == 3 })
	open("bob", "/api/v1/x", 429) // it has more than a quarter
	open("dave", "/api/v1/x", 101)
}

// A watch of a backend that speaks HTTP/1.1 has a connection for itself, too, and counts as a
// session.
func TestWatchesOverHTTP1AreBounded(t *testing.T) {
	for http1, last := range map[bool]int{true: 429, false: 200} {
		everyWay(t, func(t *testing.T, proto string) {
			metrics := prometheus.NewRegistry()
			counted := func(cfg *backend.Config) { cfg.Metrics = metrics }
			w := newWorld(t, worldConfig{remoteHTTP1: http1, backends: counted, remote: func(rw http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(rw).Flush()
				if r.URL.RawQuery != "" {
					<-r.Context().Done()
				}
			}})
			w.proxy.cfg.MaxSessions = 4
			watch := func(user string, want int) func() error {
				t.Helper()
				res := must.Get(w.httpClient(t, proto, nil).Do(w.as(t, user, "GET", remoteGV+"/widgets?watch=true", nil)))(t)
				t.Cleanup(func() { _ = res.Body.Close() })
				check.Same(t, want, res.StatusCode, "%s's watch over HTTP/1.1: %v", user, http1)
				return res.Body.Close
			}
			leave := watch("bob", 200)
			watch("bob", 200)
			watch("bob", 200)
			watch("bob", last)
			watch("carol", 200)
			w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", remoteGV+"/widgets", nil)).want(t, 200, "no watch")
			rejected(t, metrics, "sessions", map[bool]int{true: 1, false: 0}[http1])
			_ = leave()
			held := map[bool]int64{true: 3, false: 0}[http1]
			must.Soon(t, 10*time.Second, "the place of a watch that has ended", func() bool { return w.proxy.sessionPlaces.Held() == held })
		})
	}
}

// A JWT is one user's however it is written: the last bits of each part do not count.
func TestSpellingsOfToken(t *testing.T) {
	w := newWorld(t, worldConfig{local: switching})
	w.proxy.cfg.MaxSessions = 4
	for i, token := range []string{"e30.e30.AA", "e30.e31.AA", "e30.e32.AB", "e31.e33.AC"} {
		want := http.StatusSwitchingProtocols
		if i == 3 {
			want = http.StatusTooManyRequests
		}
		res, _, _ := w.say(t, nil, "GET /api/v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\n"+websocket)
		check.Same(t, want, res.StatusCode, "upgrade with %s", token)
	}
}

// A tap shows requests that the access log omits, over both protocols.
func TestTapped(t *testing.T) {
	w := newWorld(t, worldConfig{taps: true})
	r := w.as(t, "bob", "GET", "/fairlead/tap?user=bob&seconds=60", nil)
	res := must.Get(w.httpClient(t, "h2", nil).Do(r))(t)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	everyWay(t, func(t *testing.T, proto string) {
		w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", remoteGV+"/widgets?secret=x", nil))
		if !lines.Scan() || !strings.Contains(lines.Text(), `"user":"bob"`) || strings.Contains(lines.Text(), "secret") {
			t.Errorf("%q", lines.Text())
		}
	})
}

const websocket = "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"

// switching accepts any upgrade and echoes its input.
func switching(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		return // a request that proves a token
	}
	hijacked(func(c io.ReadWriter, r *http.Request) {
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Mine: yes\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(c, c)
	})(w, r)
}

func TestUpgradeEchoes(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching, local: switching})
	for _, side := range []struct {
		far  *far
		path string
	}{{w.remote, remoteGV + "/namespaces/a/vms/b/console"}, {w.local, "/api/v1/namespaces/a/pods/b/exec"}} {
		for _, protocol := range []string{"websocket", "SPDY/3.1"} {
			res, br, conn := w.raw(t, "GET "+side.path+"?stdin=true&x=%zz", "Connection: upgrade\r\nUpgrade: "+protocol+"\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\nearly")
			if res.StatusCode != 101 || !strings.EqualFold(res.Header.Get("Upgrade"), protocol) || res.Header.Get("X-Mine") != "yes" {
				t.Fatalf("%s: %d %v", protocol, res.StatusCode, res.Header)
			}
			in := side.far.last(t)
			if in.target != side.path+"?stdin=true&x=%zz" || in.header.Get("Sec-Websocket-Protocol") != "v5.channel.k8s.io" {
				t.Errorf("arrived as %s with %v", in.target, in.header)
			}
			if side.far == w.remote && (in.header.Get("X-Remote-User") != "bob" || in.header.Get("Authorization") != "") {
				t.Errorf("identity: %v", identityFields(in.header))
			}
			fmt.Fprint(conn, "hello")
			got := make([]byte, len("earlyhello"))
			if _, err := io.ReadFull(br, got); err != nil || string(got) != "earlyhello" {
				t.Errorf("%s: %q, %v", protocol, got, err)
			}
			conn.Close()
		}
	}
}

// A 101 is accepted only for the requested protocol.
func TestUpgradeToSomethingElse(t *testing.T) {
	w := newWorld(t, worldConfig{remote: hijacked(func(c io.ReadWriter, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})})
	res, _, _ := w.raw(t, "GET "+remoteGV+"/x", websocket)
	if res.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d, want 502", res.StatusCode)
	}
}

// A client whose connection cannot be hijacked is disconnected without an answer.
func TestNotTakenOver(t *testing.T) {
	defer func() {
		if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
			t.Errorf("panic with %v", v)
		}
	}()
	p := &Proxy{log: slog.New(slog.DiscardHandler)}
	p.tunnel(httptest.NewRecorder(), nil, nil, nil, nil)
}

func TestUpgradeWithBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	for _, body := range []string{"hello", ""} { // nobody waits for it
		res, _, _ := w.raw(t, "POST "+remoteGV+"/x", "Content-Length: 5\r\n"+websocket+body)
		if res.StatusCode != http.StatusRequestEntityTooLarge || w.remote.count() != 0 {
			t.Errorf("%q: status %d, %d requests arrived", body, res.StatusCode, w.remote.count())
		}
	}
}

// When both sides have ended a session, its client's connection is closed, also below TLS.
func TestSessionClosesItsClient(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	_, br, conn := w.raw(t, "GET "+remoteGV+"/x", websocket)
	must.Do(t, conn.(*tls.Conn).CloseWrite())
	if rest, err := io.ReadAll(br); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if n, err := conn.(*tls.Conn).NetConn().Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, %v: the connection is still open", n, err)
	}
}

// A backend that does not answer keeps no request whose client has left, even if the client had
// sent a byte for the tunnel before: net/http then no longer reads, and does not notice.
func TestUpgradeWithoutAnswer(t *testing.T) {
	arrived, over := make(chan struct{}), make(chan struct{})
	access, seen := newLog(t)
	w := newWorld(t, worldConfig{access: access, remote: hijacked(func(io.ReadWriter, *http.Request) {
		arrived <- struct{}{}
		<-over
	})})
	t.Cleanup(func() { close(over) })
	w.proxy.answerTime = 500 * time.Millisecond
	conn := w.dial(t, w.front, nil)
	fmt.Fprintf(conn, "GET %s/x HTTP/1.1\r\nHost: front.example.com\r\nAuthorization: Bearer token-of-bob\r\n%s", remoteGV, websocket)
	<-arrived
	fmt.Fprint(conn, "x")
	must.Do(t, conn.Close())
	must.Soon(t, 10*time.Second, "the request ends", func() bool { return w.proxy.UnderWay() == 0 })
	if line := <-seen; !strings.Contains(line, `"status":504,`) {
		t.Error(line)
	}
}

// An upgrade that was sent may have been executed: if its connection ends before the response, the
// client is not asked to repeat it.
func TestUpgradeUnanswered(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		status       int
		end          string
	}{
		{"nothing", "", 503, "lost"},
		{"half a head", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: web", 503, "lost"},
		{"something else", "SSH-2.0-OpenSSH_9.9\r\n", 502, "bad-response"},
		{"an endless head", "HTTP/1.1 101 Switching Protocols\r\nX: " + strings.Repeat("x", maxUpgradeHead), 502, "bad-response"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			access, seen := newLog(t)
			w := newWorld(t, worldConfig{access: access, remote: hijacked(func(c io.ReadWriter, _ *http.Request) { _, _ = io.WriteString(c, tt.answer) })})
			res, _, _ := w.raw(t, "POST "+remoteGV+"/namespaces/a/pods/b/exec?command=rm", websocket)
			if res.StatusCode != tt.status || res.Header.Get("Retry-After") != "" {
				t.Errorf("status %d, want %d; Retry-After %q", res.StatusCode, tt.status, res.Header.Get("Retry-After"))
			}
			if line := <-seen; !strings.Contains(line, `"end":"`+tt.end+`"`) {
				t.Errorf("want end %s: %s", tt.end, line)
			}
		})
	}
}

// After one direction of a session has ended, the other goes on, but not for ever: a client that
// has left looks the same.
func TestHalfASession(t *testing.T) {
	over := make(chan struct{})
	w := newWorld(t, worldConfig{remote: hijacked(func(c io.ReadWriter, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
		_, _ = io.WriteString(c, "late")
		<-over
	})})
	t.Cleanup(func() { close(over) })
	w.proxy.halfOpen = 500 * time.Millisecond
	_, br, conn := w.raw(t, "GET "+remoteGV+"/x", websocket)
	must.Do(t, conn.(*tls.Conn).CloseWrite())
	got := make([]byte, len("late"))
	if _, err := io.ReadFull(br, got); err != nil || string(got) != "late" {
		t.Errorf("what was sent after the client's end: %q, %v", got, err)
	}
	must.Soon(t, 10*time.Second, "the session ends", func() bool { return w.proxy.Sessions() == 0 })
}

// Only HTTP/1.1 has upgrades.
func TestUpgradeByVersion(t *testing.T) {
	for proto, want := range map[string]string{"HTTP/1.1": "websocket", "HTTP/1.0": "", "HTTP/2.0": ""} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(proto)
		check.Same(t, want, headOf(r, time.Now()).Upgrade, "%s: upgrade to", proto)
	}
}

// A head keeps the client's address, by which it is bounded, with and without the port.
func TestRemoteOfAHead(t *testing.T) {
	for remote, want := range map[string]string{"192.0.2.1:1": "192.0.2.1", "[2001:db8::1]:1": "2001:db8::1", "@": "@", ":1": ""} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr = remote
		if h := headOf(r, time.Now()); h.Remote != remote || h.RemoteIP != want {
			t.Errorf("%s: %q, %q", remote, h.Remote, h.RemoteIP)
		}
	}
}
