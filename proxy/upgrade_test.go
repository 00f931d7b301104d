package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// What ends a request outside the engine has the engine's reasons.
func TestReasonsOutsideTheEngine(t *testing.T) {
	for err, want := range map[error]engine.Reason{
		context.DeadlineExceeded: engine.ReasonDeadline, context.Canceled: engine.ReasonDrain, errNoUpgrade: engine.ReasonBadResponse,
		backend.Unreachable(): engine.ReasonNoEndpoint, errTooLong: engine.ReasonNone,
	} {
		e := &ended{offEngine: true}
		e.broke(reasonOf(fmt.Errorf("forwarding: %w", err)))
		check.Same(t, want, e.o.Load().Reason, "%v", err)
	}
}

// Upgrades are limited in total, whatever their backend, together with the watches of backends that
// speak HTTP/1.1: each has a connection for itself. One user leaves room for others.
func TestSessionsAreBounded(t *testing.T) {
	for http1, watches := range map[bool]int{true: 1, false: 0} {
		everyWay(t, func(t *testing.T, proto string) {
			metrics := prometheus.NewRegistry()
			w := newWorld(t, worldConfig{pools: backend.Config{Sinks: metric.Sinks{Metrics: metrics}}, local: switching, remoteHTTP1: http1, remote: func(rw http.ResponseWriter, r *http.Request) {
				if switching(rw, r); r.URL.RawQuery != "" {
					_ = http.NewResponseController(rw).Flush()
					<-r.Context().Done()
				}
			}})
			w.proxy.cfg.MaxSessions = 3 + watches
			held := func(want int) {
				t.Helper()
				must.Soon(t, 10*time.Second, fmt.Sprint(want, " sessions"), func() bool { return w.proxy.sessionPlaces.Held() == int64(want) })
			}
			open := func(user, path string, want int) net.Conn {
				t.Helper()
				res, _, conn := w.say(t, "GET "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-"+user+"\r\n"+websocket)
				check.Same(t, want, res.StatusCode, "%s's upgrade of %s", user, path)
				return conn
			}
			watch := func(want int) io.Closer {
				t.Helper()
				res := must.Get(w.httpClient(t, proto, nil).Do(w.as(t, "bob", "GET", remoteGV+"/widgets?watch=true", nil)))(t)
				t.Cleanup(func() { _ = res.Body.Close() })
				check.Same(t, want, res.StatusCode, "bob's watch, over HTTP/1.1: %v", http1)
				return res.Body
			}
			w.get(t, proto, remoteGV).want(t, 200, "the backend's protocol is known")
			last := watch(200)
			held(watches)
			first := open("bob", "/api/v1/x", 101)
			open("bob", remoteGV+"/x", 101)
			watch(map[bool]int{true: 429, false: 200}[http1])
			open("bob", "/api/v1/x", 429)
			w.get(t, proto, remoteGV).want(t, 200, "no session")
			open("carol", remoteGV+"/x", 101)
			open("carol", "/api/v1/x", 429)
			check.Same(t, float64(watches), rejections(t, metrics)["sessions"], "refusals of the remote")
			must.Do(t, first.Close())
			must.Do(t, last.Close())
			held(2)
		})
	}
}

// A tap shows requests that the access log omits, over both protocols.
func TestTapped(t *testing.T) {
	taps := &accesslog.Taps{}
	w := newWorld(t, worldConfig{Config: Config{Taps: taps, Pages: taps}})
	r := w.as(t, "bob", "GET", "/fairlead/tap?user=bob&seconds=60", nil)
	res := must.Get(w.httpClient(t, "h2", nil).Do(r))(t)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	everyWay(t, func(t *testing.T, proto string) {
		w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", remoteGV+"/widgets?secret=x", nil))
		check.Same(t, true, lines.Scan() && strings.Contains(lines.Text(), `"user":"bob"`) && !strings.Contains(lines.Text(), "secret"), "%q", lines.Text())
	})
}

const websocket = "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"

func switching(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		return // a request that proves a token
	}
	hijacked(func(c io.ReadWriter, r *http.Request) {
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Mine: yes\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(c, c)
	})(w, r)
}

// A client whose connection cannot be hijacked is disconnected without an answer.
func TestNotTakenOver(t *testing.T) {
	defer func() {
		v := recover()
		check.Same(t, true, v == http.ErrAbortHandler, "panic with %v", v) //nolint:errorlint // net/http compares it so
	}()
	x := &exchange{p: &Proxy{log: slog.New(slog.DiscardHandler)}}
	x.tunnel(httptest.NewRecorder(), nil, nil, nil)
}

func TestUpgradeWithBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	for _, body := range []string{"hello", ""} { // nobody waits for it
		res, _, _ := w.raw(t, "POST "+remoteGV+"/x", "Content-Length: 5\r\n"+websocket+body)
		check.Same(t, [2]int{http.StatusRequestEntityTooLarge, 0}, [2]int{res.StatusCode, w.remote.count()}, "%q: status, and requests that arrived", body)
	}
	res, _, _ := w.say(t, "GET "+remoteGV+"/x HTTP/1.1\r\nHost: front.example.com\r\n"+websocket)
	check.Same(t, "401 true", fmt.Sprint(res.StatusCode, " ", res.Close), "status, and that what follows a refused upgrade is no request")
}

// A client that does not read the answer to a refused upgrade gives its place back, whoever it is.
func TestUnreadRefusal(t *testing.T) {
	refuse := func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return // a request that proves a token
		}
		rw.WriteHeader(http.StatusForbidden)
		for p := make([]byte, 1<<20); ; { // more than any socket holds
			if _, err := rw.Write(p); err != nil {
				return
			}
		}
	}
	for _, prefix := range []string{remoteGV, "/api/v1"} {
		w := newWorld(t, worldConfig{remote: refuse, local: refuse})
		w.proxy.unreadRest = 50 * time.Millisecond
		res, _, _ := w.raw(t, "GET "+prefix+"/x", websocket)
		check.Same(t, http.StatusForbidden, res.StatusCode, "%s: status", prefix)
		must.Soon(t, 10*time.Second, prefix+": the place is free", func() bool { return w.proxy.UnderWay() == 0 })
	}
}

// A backend that does not answer keeps no request whose client has left, even if the client had
// sent a byte for the tunnel before: net/http then no longer reads, and does not notice.
func TestUpgradeWithoutAnswer(t *testing.T) {
	arrived, over := make(chan struct{}), make(chan struct{})
	access, seen, _ := newLog(t)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}, remote: hijacked(func(io.ReadWriter, *http.Request) {
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
	check.Has(t, <-seen, `"status":504,`)
}

// After one direction of a session has ended, the other goes on, but not for ever: a client that
// has left looks the same. When both have ended, the client's connection is closed, also below TLS.
func TestHalfASession(t *testing.T) {
	over := make(chan struct{})
	w := newWorld(t, worldConfig{remote: hijacked(func(c io.ReadWriter, r *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
		if _, _ = io.WriteString(c, "late"); r.URL.RawQuery == "hangs" {
			<-over
		}
	})})
	t.Cleanup(func() { close(over) })
	for query, most := range map[string]time.Duration{"ends": time.Hour, "hangs": 100 * time.Millisecond} {
		w.proxy.halfOpen = most
		_, br, conn := w.raw(t, "GET "+remoteGV+"/x?"+query, websocket)
		must.Do(t, conn.(*tls.Conn).CloseWrite())
		rest, err := io.ReadAll(br)
		check.Same(t, true, query != "ends" || err == nil && string(rest) == "late", "what was sent after the client's end: %q, %v", rest, err)
		n, err := conn.(*tls.Conn).NetConn().Read(make([]byte, 1))
		check.Is(t, io.EOF, err, "%s: the connection has ended: read %d bytes", query, n)
		must.Soon(t, 10*time.Second, "the session ends", func() bool { return w.proxy.Sessions() == 0 })
	}
}

// parting is the connection of a backend that has gone. What it sent before comes a second after a write has failed.
type parting struct {
	net.Conn
	failed chan struct{}
}

func (p parting) Write([]byte) (int, error) { close(p.failed); return 0, io.ErrClosedPipe }
func (p parting) Read([]byte) (int, error)  { <-p.failed; time.Sleep(time.Second); return 0, io.EOF }
func (p parting) Close() error              { return nil }

type hijackable struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// The last words of a backend reach a client that is still sending.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &exchange{p: &Proxy{halfOpen: time.Minute}, ended: &ended{}}
		x.p.sessions.ending = t.Context()
		client, front := net.Pipe()
		back := parting{failed: make(chan struct{})}
		go x.tunnel(hijackable{conn: front}, nil, back, bufio.NewReader(io.MultiReader(back, strings.NewReader("exit 7"))))
		br := bufio.NewReader(client)
		must.Get(http.ReadResponse(br, nil))(t)
		must.Get(io.WriteString(client, "x"))(t)
		check.Same(t, "exit 7", string(must.Get(io.ReadAll(br))(t)), "what has come")
	})
}

// What has come in one record leaves in one: in the parts of a small buffer each would cost as much.
func TestRecordsStayWhole(t *testing.T) {
	const record = 16 << 10
	for up := range 2 {
		e, over := &ended{}, make(chan error, 1)
		near, far := net.Pipe()
		src := bufio.NewReader(struct{ io.Reader }{strings.NewReader(strings.Repeat("x", record))})
		go func() { over <- e.pump(near, src, []*int64{&e.down, &e.up}[up]) }()
		n, err := far.Read(make([]byte, record))
		check.Same(t, fmt.Sprint(record, nil), fmt.Sprint(n, err), "what was written at once, up: %d", up)
		must.Do(t, far.Close())
		must.Do(t, <-over)
	}
}

// Only HTTP/1.1 has upgrades, and only those that Kubernetes uses are offered. A head keeps the
// client's address, by which it is bounded, with and without the port.
func TestHeadOfARequest(t *testing.T) {
	of := func(proto, connection, upgrade, remote string) *Head {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header = http.Header{"Connection": {connection}, "Upgrade": {upgrade}}
		r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(proto)
		r.RemoteAddr = remote
		return headOf(r, time.Now())
	}
	for asked, want := range map[[3]string]string{
		{"HTTP/1.1", "Upgrade", "websocket"}: "websocket", {"HTTP/1.1", "keep-alive, upgrade", "spdy/3.1"}: "spdy/3.1", {"HTTP/1.0", "Upgrade", "websocket"}: "",
		{"HTTP/2.0", "Upgrade", "websocket"}: "", {"HTTP/1.1", "Upgrade", "h2c"}: "", {"HTTP/1.1", "Upgrade", "TLS/1.0"}: "", {"HTTP/1.1", "Upgrade", "websocket, h2c"}: "",
		{"HTTP/1.1", "x-upgrade", "websocket"}: "", {"HTTP/1.1", "", "websocket"}: "",
	} {
		check.Same(t, want, of(asked[0], asked[1], asked[2], "").Upgrade, "%q: upgrade to", asked)
	}
	for remote, want := range map[string]string{"192.0.2.1:1": "192.0.2.1", "[2001:db8::1]:1": "2001:db8::1", "@": "@", ":1": ""} {
		h := of("HTTP/1.1", "", "", remote)
		check.Same(t, [2]string{remote, want}, [2]string{h.Remote, h.RemoteIP}, "address with and without port")
	}
}
