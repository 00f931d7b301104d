package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// While nobody reads the log, who writes lines waits once, for a second. What is stuck still comes, so do later ones.
func TestBlockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		log, began, text := slog.New(slog.NewTextHandler(patient{w, make(chan struct{}, 1)}, nil)), time.Now(), make([]byte, 1<<10)
		for i := range 100 {
			log.Info("line", "i", i)
		}
		check.Same(t, time.Second, time.Since(began), "the time of 100 lines")
		n := must.Get(r.Read(text))(t)
		check.Has(t, string(text[:n]), "i=0\n")
		synctest.Wait()
		go log.Info("line", "i", 100)
		n = must.Get(r.Read(text))(t)
		check.Has(t, string(text[:n]), "i=100\n")
	})
}

// A body that a server sends after HEAD, as some do, is in no line: net/http would print it.
func TestBodiesAreNotLogged(t *testing.T) {
	before, over := len(logged.String()), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _ := must.Get2(http.NewResponseController(w).Hijack())(t)
		defer close(over)
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nunasked")
		_, _ = io.Copy(io.Discard, conn) // ends after the line
	}))
	t.Cleanup(s.Close)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodHead, s.URL, nil))(t)
	res := must.Get(new(http.Transport).RoundTrip(r))(t)
	must.Do(t, res.Body.Close())
	<-over
	check.Lacks(t, logged.String()[before:], "unasked")
}
