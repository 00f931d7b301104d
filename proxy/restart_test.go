package proxy

import (
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
