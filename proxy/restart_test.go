package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// restart ends the server like a killed process, and restarts it at the same address after a while.
func (f *far) restart(t *testing.T, after time.Duration) {
	t.Helper()
	address := f.Listener.Addr().String()
	_ = f.Listener.Close()
	f.CloseClientConnections()
	back := make(chan *httptest.Server, 1)
	timer := time.AfterFunc(after, func() {
		defer close(back)
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: f.Config.Handler}, EnableHTTP2: f.EnableHTTP2, TLS: f.TLS.Clone()}
		s.StartTLS()
		back <- s
	})
	t.Cleanup(func() {
		if timer.Stop() {
			return
		}
		if s := <-back; s != nil {
			s.CloseClientConnections()
			s.Close()
		}
	})
}

// While the apiserver restarts, clients wait and see no error, over either protocol.
func TestLocalRestarts(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{})
		for range 2 { // the first proves the token
			w.get(t, proto, "/api/v1/pods").want(t, 200, "before")
		}
		w.local.restart(t, 700*time.Millisecond)
		began := time.Now()
		w.get(t, proto, "/api/v1/pods").want(t, 200, "a read, after", time.Since(began))
	})
}

// A request that waits for a connection to an endpoint that leaves the table uses another one at
// once, and not after the dial's timeout of 4 s.
func TestEndpointLeavesDuringADial(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		const gone = "127.0.0.9"
		dialled := make(chan struct{}, 10)
		var vanished atomic.Bool
		c := worldConfig{
			also: func(in *registry.Input) {
				if vanished.Load() {
					in.Slices[types.NamespacedName{Namespace: "default", Name: "ext"}][0].Endpoints[0].Addresses[0] = gone
				}
			},
			backends: func(c *backend.Config) {
				dial := c.Dial
				c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					if !strings.HasPrefix(address, gone) {
						return dial(ctx, network, address)
					}
					dialled <- struct{}{}
					<-ctx.Done()
					return nil, ctx.Err()
				}
			},
		}
		w := newWorld(t, c)
		w.get(t, proto, remoteGV+"/widgets").want(t, 200, "before")
		vanished.Store(true)
		w.current.Store(buildTable(t, w, c))
		began, done := time.Now(), make(chan answer, 1)
		go func() {
			done <- w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", http.MethodPost, remoteGV+"/widgets", nil))
		}()
		<-dialled
		vanished.Store(false)
		w.current.Store(buildTable(t, w, c))
		w.get(t, proto, remoteGV+"/widgets").want(t, 200, "after")
		(<-done).want(t, 200, "the one that waited")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it waited %v", took)
		}
	})
}

// An answer that comes before the end of the request's body is forwarded at once, and the request's
// goroutine does not wait for the rest.
func TestAnswerBeforeTheBody(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, http1 := range []bool{false, true} {
		for _, length := range []string{"Content-Length: 1000000\r\n\r\nbegin", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"} {
			for query, status := range map[string]int{"": http.StatusConflict, "?timeout=300ms": http.StatusGatewayTimeout} {
				t.Run(fmt.Sprint(http1, length[:7], query), func(t *testing.T) {
					t.Parallel()
					answerBeforeTheBody(t, http1, query, length, status)
				})
			}
		}
	}
}

func answerBeforeTheBody(t *testing.T, http1 bool, query, length string, status int) {
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
	conn := w.dial(t, s, nil)
	must.Get(fmt.Fprintf(conn, "POST %s/widgets%s HTTP/1.1\r\nHost: x\r\nX-Unread: 1\r\nAuthorization: Bearer token-of-bob\r\n%s", remoteGV, query, length))(t)
	must.Do(t, conn.SetReadDeadline(time.Now().Add(uploadRest*9/10))) // a response that waits for the body takes uploadRest
	br := bufio.NewReader(conn)
	if res := must.Get(http.ReadResponse(br, nil))(t); res.StatusCode != status {
		t.Fatal(res)
	}
	must.Do(t, conn.SetReadDeadline(time.Now().Add(2*uploadRest)))
	if _, err := io.Copy(io.Discard, br); err != nil {
		t.Errorf("the connection does not end: %v", err)
	}
}

// A backend that begins its answer, stops reading a large body and then hangs keeps no client
// beyond the deadline: net/http's HTTP/2 client waits for credit to send the body, and ignores the
// request's context meanwhile.
func TestDeadlineOfAnUpload(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	w := newWorld(t, worldConfig{remote: hang})
	everyWay(t, func(t *testing.T, proto string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := w.as(t, "bob", "POST", remoteGV+"/widgets?timeout=300ms", bytes.NewReader(make([]byte, 3<<20))).WithContext(ctx)
		r.Header.Set("X-Unread", "yes")
		res, err := w.httpClient(t, proto, nil).Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if err == nil || ctx.Err() != nil {
			t.Errorf("the answer ended with %v, the context with %v", err, ctx.Err())
		}
	})
}
