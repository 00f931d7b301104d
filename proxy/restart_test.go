package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// restart ends the server as a killed process does, and brings it back at its old address after a while.
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

// An apiserver that restarts costs its clients nothing but the time, whichever the lane.
func TestLocalRestarts(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{})
		for range 2 { // the first proves the token
			if got := w.get(t, proto, "/api/v1/pods"); got.status != 200 {
				t.Fatalf("before: %d %s", got.status, got.body)
			}
		}
		w.local.restart(t, 700*time.Millisecond)
		began := time.Now()
		if got := w.get(t, proto, "/api/v1/pods"); got.status != 200 {
			t.Errorf("a read: %d after %s: %s", got.status, time.Since(began), got.body)
		}
	})
}

// Who is answered before its body has come does not keep the answer waiting, nor its request's goroutine, however long the rest takes.
func TestAnswerBeforeTheBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }})
	s := w.server()
	s.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		check(t, http.NewResponseController(rw).EnableFullDuplex()) // as cmd/fairlead does
		w.proxy.ServeHTTP(rw, r)
	})
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	old := w.front
	w.front = s
	conn := w.dialFront(t)
	w.front = old
	_, err := fmt.Fprintf(conn, "POST %s/widgets HTTP/1.1\r\nHost: x\r\nX-Unread: 1\r\nAuthorization: Bearer token-of-bob\r\nContent-Length: 1000000\r\n\r\nbegin", remoteGV)
	check(t, err)
	check(t, conn.SetReadDeadline(time.Now().Add(uploadRest/2)))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusConflict {
		t.Fatalf("%v, %v", res, err)
	}
	res.Body.Close()
	check(t, conn.SetReadDeadline(time.Now().Add(2*uploadRest)))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection does not end: %v", err)
	}
}
