package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A head has so many names, and a Connection so many, from clients and from backends; but a user may have more groups.
func TestManyFields(t *testing.T) {
	list := func(n int) string { return "Connection: x-0" + strings.Repeat(",", n-1) + "\r\n" }
	w := newWorld(t, worldConfig{remoteHTTP1: true, remote: hijacked(func(c io.ReadWriter, r *http.Request) {
		var head string
		switch r.URL.RawQuery {
		case "names":
			head = proportion.Lines(wire.MaxNames+1, "X-%d", "1")
		case "most":
			head = list(maxListed) + proportion.Lines(wire.MaxNames-2, "X-%d", "1")
		case "lists":
			head = list(maxListed+1) + proportion.Lines(1, "X-%d", "1")
		}
		switch r.URL.Path[len(remoteGV):] {
		case "/early":
			fmt.Fprintf(c, "HTTP/1.1 103 Early Hints\r\n%s\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", head)
		case "/switched":
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n%s\r\n", strings.Replace(head, "x-0,", "x-0", 1))
		case "/odd":
			fmt.Fprintf(c, "HTTP/1.1 099 Odd\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n%s\r\n", head)
		case "/refused":
			fmt.Fprintf(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n%s\r\n", head)
		default:
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n%s\r\n", head)
		}
	})})
	for _, tc := range []struct {
		target, head string
		want         int
	}{
		{"", list(maxListed) + proportion.Lines(wire.MaxNames-2, "X-%d", "1"), 200}, // with Authorization
		{"", list(maxListed + 1), 400}, {"", strings.Repeat("X-Remote-Group: g\r\n", 1500), 200},
		{"/early?most", "", 200}, {"/early?names", "", 502}, {"/early?lists", "", 502},
		{"/final?most", "", 200}, {"/final?names", "", 502}, {"/final?lists", "", 502},
		{"/refused?most", websocket, 403}, {"/refused?names", websocket, 502}, {"/refused?lists", websocket, 502},
		{"/odd", websocket, 502}, {"/switched?names", websocket, 502}, {"/switched?lists", websocket, 502}, {"/switched", websocket, 101},
	} {
		res, br, _ := w.raw(t, "GET "+remoteGV+tc.target, strings.TrimSuffix(tc.head, "\r\n")+strings.Repeat("\r\n", min(1+len(tc.head), 2)))
		for res.StatusCode == http.StatusEarlyHints {
			res = must.Get(http.ReadResponse(br, nil))(t)
		}
		check.Same(t, fmt.Sprint(tc.want, " "), fmt.Sprint(res.StatusCode, " ", res.Header.Get("X-0")), "%s with %.40q: %.60q", tc.target, tc.head, res.Header)
	}
	res, _, _ := w.say(t, "GET /metrics HTTP/1.1\r\nHost: x\r\n"+list(maxListed+1)+"\r\n")
	check.Same(t, 400, res.StatusCode, "status of a stranger")
}

// A client that expects 100 Continue gets one if its body is wanted, and none before a refusal,
// however long the body is. No backend gets its expectation.
func TestExpectation(t *testing.T) {
	const rest = "Expect: 100-continue\r\nX-Unread: 1\r\n"
	told := make(chan struct{}, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/mute") { // like nginx over HTTP/2: it waits for the body
			select {
			case <-told:
			case <-r.Context().Done():
				return
			}
		}
		if strings.HasSuffix(r.Header.Get("Authorization"), "wrong") {
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/api/v1/pods" { // over the unproven pool it has ours
			delete(r.Header, "Expect")
		}
		fmt.Fprint(w, n, r.Header["Expect"])
	}
	bothBackends(t, worldConfig{remote: handler, local: handler}, func(t *testing.T, w *world) {
		for _, tc := range []struct {
			path, token string
			length      int
			want        string
		}{
			{remoteGV + "/widgets", "token-of-bob", 400_000, "100 200 400000 []"}, {remoteGV + "/widgets", "token-of-bob", 10, "100 200 10 []"}, {remoteGV + "/widgets", "token-of-bob", 0, "200 0 []"},
			{remoteGV + "/widgets", "wrong", 400_000, "401"}, {remoteGV + "/widgets", "wrong", 10, "401"},
			{"/api/v1/pods", "wrong", 400_000, "401"}, {"/api/v1/pods", "wrong", 10, "401"}, {"/api/v1/pods", "wrong", 0, "401"},
			{"/api/v1/pods", "token-of-bob", 400_000, "100 200 400000 []"}, {"/api/v1/pods", "token-of-bob", 10, "100 200 10 []"}, {"/api/v1/pods", "token-of-bob", 0, "200 0 []"},
		} {
			for range 3 { // of tokens for the local apiserver, the first is not proven yet
				conn := w.dial(t, w.front, nil)
				fmt.Fprintf(conn, "PATCH %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n%s\r\n", tc.path, tc.token, tc.length, rest)
				br, got := bufio.NewReader(conn), ""
				for {
					res := must.Get(http.ReadResponse(br, nil))(t)
					got += fmt.Sprint(res.StatusCode)
					if res.StatusCode == http.StatusOK {
						got += " " + string(must.Get(io.ReadAll(res.Body))(t))
					}
					if res.StatusCode != http.StatusContinue {
						break
					}
					got += " "
					must.Get(conn.Write(make([]byte, tc.length)))(t)
				}
				check.Same(t, tc.want, got, "%s with %d bytes as %s", tc.path, tc.length, tc.token)
			}
		}
		c := w.httpClient(t, "h2", nil)
		c.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
		r := w.as(t, "bob", "PATCH", remoteGV+"/widgets/mute?timeout=5s", strings.NewReader("body"))
		r.Header.Set("Expect", "100-continue")
		r.Header.Set("X-Unread", "1")
		trace := &httptrace.ClientTrace{Got100Continue: func() { told <- struct{}{} }}
		got := w.do(t, c, r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
		check.Same(t, "4 []", got.body, "body over HTTP/2, with status %d", got.status)
	})
}

// A wrong token gets its 401 whatever body comes with it, also without an expectation.
func TestRefusedWithBody(t *testing.T) {
	w := newWorld(t, worldConfig{local: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
	}})
	everyWay(t, func(t *testing.T, proto string) {
		for range 10 {
			r := w.by(t, "Bearer wrong", "PATCH", "/api/v1/pods", bytes.NewReader(make([]byte, 400_000)))
			r.Header.Set("X-Unread", "1")
			w.do(t, w.httpClient(t, proto, nil), r).want(t, http.StatusUnauthorized)
		}
	})
}

// What has come of a body is passed on, in both directions and over all protocols, though the whole
// of declared length comes later.
func TestSlowBodies(t *testing.T) {
	came := make(chan byte)
	bothBackends(t, worldConfig{remote: func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		if r.Method == http.MethodGet {
			rw.Header().Set("Content-Length", "2")
			must.Do(t, control.Flush())
			for range 2 {
				must.Get(rw.Write([]byte{<-came}))(t)
				must.Do(t, control.Flush())
			}
			return
		}
		for range 2 {
			b := make([]byte, 1)
			must.Get(io.ReadFull(r.Body, b))(t)
			came <- b[0]
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}}, func(t *testing.T, w *world) {
		everyWay(t, func(t *testing.T, proto string) {
			c := w.httpClient(t, proto, nil)
			res := must.Get(c.Do(w.as(t, "bob", "GET", remoteGV+"/widgets", nil)))(t)
			for _, part := range []byte("ab") {
				came <- part
				b := make([]byte, 1)
				must.Get(io.ReadFull(res.Body, b))(t)
				check.Same(t, part, b[0], "a part of the answer")
			}
			res.Body.Close()
			for _, length := range []int{3, 100_000, 256 << 10, 300_000} {
				pr, pw := io.Pipe()
				r := w.as(t, "bob", "PUT", remoteGV+"/widgets/a", pr)
				r.ContentLength = int64(length)
				r.Header.Set("X-Unread", "1")
				done := make(chan error, 1)
				go func() {
					res, err := c.Do(r)
					if err == nil {
						err = res.Body.Close()
					}
					done <- err
				}()
				for _, part := range []byte("cd") {
					must.Get(pw.Write([]byte{part}))(t)
					check.Same(t, part, <-came, "a part of the request")
				}
				must.Get(pw.Write(make([]byte, length-2)))(t)
				must.Do(t, pw.Close())
				must.Do(t, <-done)
			}
		})
	})
}

// A list that the local apiserver answers whatever the Upgrade is relayed whole. Stories have a remote's.
func TestAnsweredUpgrade(t *testing.T) {
	list := strings.Repeat("item", 1<<20)
	w := newWorld(t, worldConfig{local: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, list) }})
	res, br, _ := w.raw(t, "GET /api/v1/pods", websocket)
	check.Same(t, "200 true", fmt.Sprint(res.StatusCode, " ", res.Close), "status, and whether the connection ends")
	body, err := io.ReadAll(res.Body)
	check.Same(t, true, err == nil && string(body) == list, "the whole list: %d bytes, %v", len(body), err)
	check.Same(t, true, check.Err(br.ReadByte()) != nil, "the connection has ended")
}

func countHints(ctx context.Context, n *int) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { *n++; return nil }})
}

// A backend that sends interim heads without end is stopped, over either protocol.
func TestInterimFlood(t *testing.T) {
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}}, func(t *testing.T, w *world) {
		everyWay(t, func(t *testing.T, proto string) {
			r, n := w.as(t, "bob", "GET", remoteGV+"/widgets?timeout=5s", nil), 0
			got := w.do(t, w.httpClient(t, proto, nil), r.WithContext(countHints(r.Context(), &n)))
			check.Same(t, http.StatusBadGateway, got.status, "%s", got.body)
			check.Within(t, 0, maxInterims, n, "interim heads")
		})
	})
}

// An interim head after the end of its request is dropped, and none removes fields of the final head.
func TestInterimTooLate(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		interims := interimsOf(r, w, &Decision{})
		must.Do(t, interims.relay(http.StatusEarlyHints, textproto.MIMEHeader{"Connection": {"x-a"}, "Link": {"</a>"}}))
		interims.end()
		must.Do(t, interims.relay(http.StatusEarlyHints, textproto.MIMEHeader{"Link": {"</late>"}}))
	}))
	t.Cleanup(s.Close)
	n := 0
	r := must.Get(http.NewRequestWithContext(countHints(t.Context(), &n), http.MethodGet, s.URL, nil))(t)
	res := must.Get(s.Client().Do(r))(t)
	defer res.Body.Close()
	check.Same(t, "1 true ", fmt.Sprint(n, " ", res.Close, " ", res.Header.Get("Link")), "interim heads, whether the connection ends, and the final Link")
}

// An HTTP/1.0 client gets no interim heads, nor does one to which net/http writes 100 Continue: for the race detector.
func TestInterimsOfHTTP1(t *testing.T) {
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Connection", "close")
	}}, func(t *testing.T, w *world) {
		old := w.dial(t, w.front, nil)
		must.Get(fmt.Fprintf(old, "GET %s/widgets HTTP/1.0\r\nAuthorization: Bearer token-of-bob\r\n\r\n", remoteGV))(t)
		got := string(must.Get(io.ReadAll(old))(t))
		check.Same(t, true, strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n"), "HTTP/1.0: %q", got)
		res, br, conn := w.raw(t, "POST "+remoteGV+"/widgets", "X-Unread: 1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
		check.Same(t, http.StatusContinue, res.StatusCode, "first status")
		must.Get(io.WriteString(conn, "1\r\na\r\n0\r\n\r\n"))(t)
		check.Same(t, http.StatusOK, must.Get(http.ReadResponse(br, nil))(t).StatusCode, "second status")
	})
}

func bothBackends(t *testing.T, c worldConfig, f func(t *testing.T, w *world)) {
	for name, http1 := range map[string]bool{"to h2": false, "to http/1.1": true} {
		t.Run(name, func(t *testing.T) {
			c.remoteHTTP1 = http1
			f(t, newWorld(t, c))
		})
	}
}

// hijacked answers with bytes of its own, and closes the connection.
func hijacked(f func(io.ReadWriter, *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		f(struct {
			io.Reader // has buffered bytes
			io.Writer
		}{rw, conn}, r)
	}
}

// The 3xx that lead a client to another place are rejected, unless the operator wants them.
func TestRejectedStatuses(t *testing.T) {
	for status := 100; status < 600; status++ {
		check.Same(t, status >= 300 && status < 400, (&Proxy{}).rejects(status, true), "%d is rejected", status)
		check.Same(t, false, (&Proxy{}).rejects(status, false), "%d that leads nowhere is rejected", status)
		check.Same(t, false, (&Proxy{cfg: Config{ForwardRedirects: true}}).rejects(status, true), "%d is rejected with ForwardRedirects", status)
	}
}

// No trailer of a request reaches a backend, by either protocol: none that states an identity or a
// length, and none that breaks a connection that others share.
func TestTrailersDoNothing(t *testing.T) {
	for _, impersonate := range []bool{false, true} {
		bothBackends(t, worldConfig{impersonate: impersonate}, func(t *testing.T, w *world) {
			for _, side := range []struct {
				far  *far
				path string
			}{{w.remote, remoteGV + "/widgets"}, {w.local, "/api/v1/pods"}} {
				arrived := func(way string) {
					t.Helper()
					in := side.far.last(t)
					check.Same(t, http.Header(nil), in.trailer, "%s: trailers %s", side.path, way)
					check.Same(t, "body", in.body, "%s: body %s", side.path, way)
				}
				everyWay(t, func(t *testing.T, proto string) {
					r := w.request(t, "POST", side.path, io.NopCloser(strings.NewReader("body")))
					r.ContentLength = -1
					r.Trailer = http.Header{"X-Checksum": {"abc"}}
					for _, name := range []string{"X-Remote-User", "X_remote-Group", "Authorization", "Impersonate-User", "Impersonate-Group"} {
						r.Trailer[name] = []string{"root"}
					}
					w.do(t, w.httpClient(t, proto, w.client.Issue(pki.Leaf{CommonName: "alice"})), r).want(t, 200)
					arrived("over " + proto)
				})
				res, _, _ := w.raw(t, "POST "+side.path, "Connection: X-Listed, close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum, X-Listed, Authorization, Impersonate-User\r\n\r\n4\r\nbody\r\n0\r\nX-Checksum: abc\r\nX-Listed: x\r\n"+
					"X-Remote-User: system:admin\r\nX_remote_group: system:masters\r\nAuthorization: Bearer x\r\nImpersonate-User: root\r\nContent-Length: 9\r\nX-Other: x\r\n\r\n")
				check.Same(t, 200, res.StatusCode, "%s: status", side.path)
				arrived("unannounced")
			}
		})
	}
}

var uuid4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// The head of an answer is counted from its first byte until the client has the answer: also of one that never
// ends, and while its body is awaited, over any protocols but for those that frames go by.
func TestHeadsOfAnswersAreHeld(t *testing.T) {
	const size = 200 * 900
	head := proportion.Lines(200, "X-%d", strings.Repeat("v", 900))
	for _, http1 := range []bool{true, false} {
		memory := hold.New(1 << 30)
		stay := make(chan struct{})
		remote := func(w http.ResponseWriter, r *http.Request) {
			for line := range strings.SplitSeq(strings.TrimSuffix(head, "\r\n"), "\r\n") {
				name, value, _ := strings.Cut(line, ": ")
				w.Header().Set(name, value)
			}
			if r.URL.RawQuery == "interim" {
				w.WriteHeader(http.StatusEarlyHints)
			} else {
				_ = http.NewResponseController(w).Flush()
			}
			<-stay
		}
		if http1 {
			remote = hijacked(func(c io.ReadWriter, r *http.Request) {
				status := map[string]string{"unfinished": "200 OK", "interim": "103 Early Hints", "whole": "200 OK"}[r.URL.RawQuery]
				fmt.Fprintf(c, "HTTP/1.1 %s\r\n%s", status, head)
				if r.URL.RawQuery != "unfinished" {
					_, _ = io.WriteString(c, "\r\n")
				}
				<-stay
			})
		}
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: remote, pools: backend.Config{Memory: memory}})
		for _, kind := range []string{"whole", "interim", "unfinished"} {
			if !http1 && kind == "unfinished" {
				continue
			}
			conn := w.dial(t, w.front, nil)
			must.Get(fmt.Fprintf(conn, "GET %s/widgets?%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-bob\r\n\r\n", remoteGV, kind))(t)
			must.Soon(t, 10*time.Second, fmt.Sprintf("the head is held: %s, HTTP/1.1 %v", kind, http1), func() bool { return memory.Held() > size })
			conn.Close()
			must.Soon(t, 10*time.Second, fmt.Sprintf("the head is not held any more: %s, HTTP/1.1 %v", kind, http1), func() bool { return memory.Held() == 0 })
		}
		close(stay)
	}
}
