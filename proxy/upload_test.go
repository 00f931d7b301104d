package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// An answer that comes before the end of the request's body is forwarded at once, and the request's
// goroutine does not wait for the rest.
func TestAnswerBeforeTheBody(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, http1 := range []bool{false, true} {
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(w http.ResponseWriter, r *http.Request) {
			must.Do(t, http.NewResponseController(w).EnableFullDuplex())
			if r.URL.RawQuery == "" {
				w.WriteHeader(http.StatusConflict)
				must.Do(t, http.NewResponseController(w).Flush())
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}})
		s := w.server()
		s.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			must.Do(t, http.NewResponseController(rw).EnableFullDuplex()) // like cmd/fairlead; this ends the connection
			rw.Header().Set("Connection", "close")
			w.proxy.ServeHTTP(rw, r)
		})
		s.StartTLS()
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		for _, length := range []string{"Content-Length: 1000000\r\n\r\nbegin", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"} {
			for query, status := range map[string]int{"": http.StatusConflict, "?timeout=300ms": http.StatusGatewayTimeout} {
				t.Run(fmt.Sprint(http1, length[:7], query), func(t *testing.T) {
					t.Parallel()
					conn := w.dial(t, s, nil)
					must.Get(fmt.Fprintf(conn, "POST %s/widgets%s HTTP/1.1\r\nHost: x\r\nX-Unread: 1\r\nAuthorization: Bearer token-of-bob\r\n%s", remoteGV, query, length))(t)
					must.Do(t, conn.SetReadDeadline(time.Now().Add(uploadRest*9/10))) // a response that waits for the body takes uploadRest
					br := bufio.NewReader(conn)
					check.Same(t, status, must.Get(http.ReadResponse(br, nil))(t).StatusCode, "status")
					must.Do(t, conn.SetReadDeadline(time.Now().Add(2*uploadRest)))
					must.Get(io.Copy(io.Discard, br))(t) // the connection ends
				})
			}
		}
	}
}

// A response to a request that was not sent ends at once, though its client waits to be asked for the body.
func TestRefusedBeforeTheBody(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.get(t, "http/1.1", remoteGV).want(t, 200, "the backend's protocol is known")
	fillUp(t, w.upstream(), false)
	began := time.Now()
	res, _, conn := w.raw(t, "POST "+remoteGV+"/widgets", "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	must.Get(io.Copy(io.Discard, res.Body))(t)
	check.Same(t, http.StatusTooManyRequests, res.StatusCode, "status")
	check.Within(t, 0, uploadRest/2, time.Since(began), "time")
	must.Do(t, conn.Close())
}

// A body of declared length that comes in many small parts, each sooner than flushAfter, does not wait for the last.
func TestTrickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		f := &flusher{}
		for range 3 {
			f.wait(w)
			time.Sleep(flushAfter * 2 / 5)
			f.wait(nil)
		}
		f.wait(w)
		synctest.Wait()
		check.Same(t, true, w.Flushed, "flushed after %v", flushAfter*6/5)
		f.wait(nil)
	})
}
