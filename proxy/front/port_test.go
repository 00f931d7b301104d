package front

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// get sends a request over a connection of its own, which leave closes.
func (s *served) get(t *testing.T, protocol string) (res *http.Response, leave func(), err error) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.from)}}
	transport := &http.Transport{TLSClientConfig: s.client.Clone(), ForceAttemptHTTP2: protocol == "h2", DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	res, err = (&http.Client{Transport: transport}).Get("https://" + s.listener.Addr().String())
	return res, transport.CloseIdleConnections, err
}

// Shutdown lets requests finish, over both protocols, and aborts those that take too long.
func TestShutdown(t *testing.T) {
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, finishes := range []bool{true, false} {
			finish, cut := make(chan struct{}), make(chan error, 1)
			s := serve(t, 100, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "first")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-finish:
					_, _ = io.WriteString(w, " and second")
				case <-r.Context().Done():
					cut <- context.Cause(r.Context())
				}
			}))
			res, _ := must.Get2(s.get(t, protocol))(t)
			defer res.Body.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- s.Shutdown(ctx, 0) }()
			must.Soon(t, 10*time.Second, "the port takes no new connections", func() bool {
				conn, err := (&tls.Dialer{Config: s.client}).DialContext(t.Context(), "tcp", s.listener.Addr().String())
				if err == nil {
					_ = conn.Close()
				}
				return err != nil
			})
			if finishes {
				close(finish)
			} else {
				cancel()
			}
			body, err := io.ReadAll(res.Body)
			check.Same(t, finishes, err == nil && string(body) == "first and second", "%s: read as a whole: %q, %v", protocol, body, err)
			check.Is(t, map[bool]error{false: context.Canceled}[finishes], <-ended, "%s: Shutdown", protocol)
			if !finishes {
				check.Same(t, "drain", strings.SplitN((<-cut).Error(), ":", 2)[0], "%s: the cause of the request's end", protocol)
			}
		}
	}
}

// Serve returns an error if its listener was closed; others pass.
func TestServeFails(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 100}))(t)
	_ = l.Close()
	l.Listener = &exhausted{l.Listener, 2, syscall.ENOMEM}
	p := New(Config{Listener: l, TLS: &tls.Config{Certificates: make([]tls.Certificate, 1), MinVersion: tls.VersionTLS12}, Frames: h2.New(h2.Config{}), ConnContext: same})
	check.Is(t, net.ErrClosed, p.Serve(), "Serve")
}

// A connection holds its place until it is closed, over both protocols. One address leaves a place to others. A port
// that keeps no connections closes idle ones.
func TestMaxConnections(t *testing.T) {
	const most = 4
	for _, protocol := range []string{"h2", "http/1.1"} {
		s := serve(t, most, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		c := s.listener
		open := func() (leave func(), err error) {
			res, leave, err := s.get(t, protocol)
			if err == nil {
				res.Body.Close()
			}
			return leave, err
		}
		first := must.Get(open())(t)
		for range most - 2 {
			must.Get(open())(t)
		}
		_, err := open()
		check.Same(t, [2]bool{true, true}, [2]bool{err != nil, testutil.ToFloat64(c.stalls) > 0}, "the last place is kept from who has the others, which counts")
		s.from = "127.0.0.2"
		must.Get(open())(t)
		check.Same(t, most, c.open.Load(), "fairlead_connections")
		s.from = "127.0.0.3"
		more := make(chan error, 1)
		go func() { _, err := open(); more <- err }()
		must.Soon(t, 10*time.Second, "a full port says so", func() bool { return testutil.ToFloat64(c.stalls) > 0 || len(more) > 0 })
		check.Same(t, 0, len(more), "connections served beyond the limit")
		first()
		must.Do(t, <-more)
		check.Same(t, most, c.open.Load(), "fairlead_connections")
		s.Keep(false)
		must.Soon(t, 10*time.Second, "idle connections are closed", func() bool {
			if protocol == "h2" {
				s.Keep(false) // its clients are only sent away after a request
			}
			return c.open.Load() == 0
		})
	}
}

// A client that reads slowly gets the whole of an answer after which its connection ends, whatever
// it has sent behind its request.
func TestRequestBehindTheLast(t *testing.T) {
	answer := strings.Repeat("a", 300<<10)
	s := serve(t, 100, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, answer)
	}))
	raw := must.Get(net.Dial("tcp", s.listener.Addr().String()))(t)
	must.Do(t, raw.(*net.TCPConn).SetReadBuffer(32<<10))
	client := tls.Client(raw, s.client)
	defer client.Close()
	must.Get(io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nPUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n"+strings.Repeat("b", 9000)))(t)
	must.Soon(t, 10*time.Second, "the connection is closed", func() bool { return s.listener.open.Load() == 0 })
	res := must.Get(http.ReadResponse(bufio.NewReader(client), nil))(t)
	body, err := io.ReadAll(res.Body)
	check.Same(t, true, err == nil && string(body) == answer && res.Close, "read %d bytes, %v; the connection ends: %v", len(body), err, res.Close)
}

// A connection that is closed during its request gives its place back, although its client never
// closes it, and net/http clears the deadlines of its reads.
func TestClosedDuringRequest(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	s := serve(t, 100, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-answer }))
	client := must.Get((&tls.Dialer{Config: s.client}).DialContext(t.Context(), "tcp", s.listener.Addr().String()))(t)
	defer client.Close()
	must.Get(io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
	<-asked
	_ = s.Close() // an error if the listener is closed already
	close(answer)
	must.Soon(t, 10*time.Second, "the place is free", func() bool { return s.listener.open.Load() == 0 })
}

// exhausted fails several times, for example for lack of file descriptors.
type exhausted struct {
	net.Listener
	times int
	err   error
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.times--; e.times >= 0 {
		return nil, e.err
	}
	return e.Listener.Accept()
}

// A failed Accept keeps no place. For lack of descriptors idle clients make room.
func TestFailedAcceptKeepsNoPlace(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 1}))(t)
	defer time.AfterFunc(10*time.Second, func() { _ = l.Close() }).Stop() // ends a wait for a place
	l.Listener = &exhausted{l.Listener, 2, syscall.EMFILE}
	rooms := 0
	l.room = func(*hold.Source) { rooms++ }
	for range 2 {
		check.Is(t, syscall.EMFILE, check.Err(l.Accept()), "Accept")
	}
	check.Same(t, true, rooms > 0, "idle clients make room")
	client := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer client.Close()
	conn := must.Get(l.Accept())(t)
	_ = conn.Close()
	_ = l.Close()
}

// A port that stays full is counted once in stallLogInterval: no alert would notice a counter that
// rose once. It is logged more seldom.
func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		rooms := 0
		l := &Listener{log: slog.New(slog.NewTextHandler(&log, nil)), stalls: prometheus.NewCounter(prometheus.CounterOpts{}), done: make(chan struct{}), room: func(*hold.Source) { rooms++ }} // with no place
		time.AfterFunc(4*stallLogInterval+time.Second, func() { close(l.done) })
		check.Is(t, net.ErrClosed, check.Err(l.Accept()), "Accept")
		check.Same(t, 5, testutil.ToFloat64(l.stalls), "stalls counted in four intervals, at once and after each")
		check.Same(t, 3, strings.Count(log.String(), "new connections wait"), "stalls logged, after more than an interval")
		check.Same(t, true, rooms >= 240, "idle clients make room each second, for some become idle later: %d times", rooms)
	})
}

// Who forgets TLS is told so, as by net/http; what is no HTTP gets no bytes that it could take for its protocol's.
func TestPlainHTTP(t *testing.T) {
	s := serve(t, 100, http.NotFoundHandler())
	for said, want := range map[string]bool{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n": true, "HEAD /readyz HTTP/1.1\r\n\r\n": true, "POST /apis HTTP/1.0\r\n\r\n": true, "PUT /x HTTP/1.1\r\n\r\n": true,
		"OPTIONS * HTTP/1.1\r\n\r\n": true, "SSH-2.0-OpenSSH_9.9\r\n": false, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": false, "GETs": false,
	} {
		conn := must.Get(net.Dial("tcp", s.listener.Addr().String()))(t)
		must.Get(io.WriteString(conn, said))(t)
		must.Do(t, conn.(*net.TCPConn).CloseWrite())
		answer, _ := io.ReadAll(conn)
		_ = conn.Close()
		check.Same(t, want, string(answer) == "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", "%q is told (%q)", said, answer)
		check.Same(t, want, len(answer) > 0, "%q gets an answer", said)
	}
}
