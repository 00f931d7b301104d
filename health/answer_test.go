package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// answer says how servers answer some requests.
type answer struct {
	nth, every   int64         // by number; zero means all
	path, host   string        // empty means any
	takes        time.Duration // the work, which ends if the client leaves
	uneven       time.Duration // up to four times this more
	period       time.Duration // all of a period are answered together at its end
	status       int           // zero means 200
	hangs        bool
	aborts, cuts bool // the stream, or the whole connection
	closes       bool // the connection, after the response
}

// answer changes the answers: for some requests, or for all.
func (w *world) answer(words ...string) {
	a := answer{}
	for _, word := range words {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "nth":
			a.nth = w.value(value)
		case "every":
			a.every = w.value(value)
		case "claim":
			a.path = pathOf(w.all[w.value(value)])
		case "at":
			a.host = w.all[0].Endpoints[w.value(value)].Address
		case "takes":
			a.takes = time.Duration(w.value(value))
		case "uneven":
			a.uneven = time.Duration(w.value(value))
		case "period":
			a.period = time.Duration(w.value(value))
		case "hangs":
			a.hangs = true
		case "aborts":
			a.aborts = true
		case "cuts":
			a.cuts = true
		case "closes":
			a.closes = true
		default:
			a.status = int(w.value(word))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.nth == 0 && a.every == 0 && a.path == "" && a.host == "" {
		w.answers = nil
	}
	w.answers = slices.Insert(w.answers, 0, a)
}

func (w *world) answerTo(r *http.Request, n int64) answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.answers {
		numbered := (a.nth == 0 || a.nth == n) && (a.every == 0 || n%a.every == 0)
		if numbered && (a.path == "" || a.path == r.URL.Path) && (a.host == "" || a.host == r.Host) {
			return a
		}
	}
	return answer{}
}

// note notes a request, and returns its number.
func (w *world) note(r *http.Request) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	w.requests[r.URL.Path]++
	w.request = r
	return w.asked
}

// work takes as long as an answer's work, and counts those that work at the same time.
func (w *world) work(r *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	count := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.working += n
		w.most = max(w.most, w.working)
	}
	count(1)
	defer count(-1)
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

type connKey struct{}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	n := w.note(r)
	a := w.answerTo(r, n)
	d := a.takes + time.Duration(n%5)*a.uneven
	if a.period > 0 {
		d = time.Until(time.Now().Truncate(a.period).Add(a.period))
	}
	w.work(r, d)
	switch a = w.answerTo(r, n); { // it may have changed meanwhile
	case a.hangs:
		<-r.Context().Done()
	case a.aborts:
		panic(http.ErrAbortHandler)
	case a.cuts:
		_ = r.Context().Value(connKey{}).(net.Conn).Close() //nolint:forcetypeassert // as in serve
	case a.closes:
		rw.Header().Set("Connection", "close")
	}
	if a.status == http.StatusFound {
		rw.Header().Set("Location", "/elsewhere")
	}
	if rw.WriteHeader(cmp.Or(a.status, http.StatusOK)); a.status >= http.StatusBadRequest {
		_, _ = rw.Write([]byte("[-]etcd failed"))
	}
}

// serve runs an HTTPS server on a host until the test ends: with HTTP/2 or, by alpn, with another protocol or none.
func (w *world) serve(h *host, alpn string, streams int) {
	s := &http.Server{
		Handler: w, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams},
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{w.pair}, ClientAuth: tls.RequireAnyClientCert},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	run := func() { _ = s.ServeTLS(h, "", "") }
	if alpn != "" {
		if alpn != "none" {
			s.TLSConfig.NextProtos = []string{alpn}
		}
		run = func() { _ = s.Serve(tls.NewListener(h, s.TLSConfig)) }
	}
	h.set("listening")
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	w.t.Cleanup(func() {
		_ = s.Close()
		<-done
		synctest.Wait()
	})
}

// typedError is an error like those of package certs/trust.
type typedError struct{}

func (typedError) Error() string  { return "no certificate in the bundle" }
func (typedError) Reason() string { return registry.ReasonInvalidCABundle }

// trust is what the Prober trusts: good or other roots, none, no connection (refused), or nothing
// can be found out (broken).
func (w *world) trust(owner string, b *registry.Backend) (*tls.Config, error) {
	check.Same(w.t, b.Owner, owner, "whose trust is asked for")
	w.mu.Lock()
	trusts, takes := w.trusts, w.handshake
	w.mu.Unlock()
	time.Sleep(takes)
	c := &tls.Config{RootCAs: w.roots[trusts], Certificates: []tls.Certificate{w.pair}}
	switch trusts {
	case "none":
		return nil, fmt.Errorf("looking: %w", typedError{})
	case "broken":
		return nil, errors.New("no key pair")
	case "refused":
		c.InsecureSkipVerify, c.VerifyConnection = true, func(tls.ConnectionState) error { return typedError{} }
	}
	return c, nil
}
