package h2

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// The shortest body is sent, with its type, and a single trailer with or without a body, but none
// that belongs into a head.
func TestShortResponse(t *testing.T) { onDrivers(t, testShortResponse) }

func testShortResponse(t *testing.T, driver string) {
	s := newStand(t, driver, http.NotFoundHandler(), func(_ *Head, p *Plan) {
		p.Forward, p.Serve = nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.URL.Path[1:])
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"Content-Length", "2")
		})
	})
	for body, media := range map[string]string{"x": "text/plain; charset=utf-8", "": ""} {
		res := s.do("GET", "/"+body, nil)
		if got := s.read(res); got != body || res.Header.Get("Content-Type") != media || len(res.Trailer) != 1 || res.Trailer.Get("X-Sum") != "1" {
			t.Errorf("%q, want %q: %v, trailers %v", got, body, res.Header, res.Trailer)
		}
	}
}

func TestLocalDeadlines(t *testing.T) { onDrivers(t, testLocalDeadlines) }

func testLocalDeadlines(t *testing.T, driver string) {
	got := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		switch r.URL.Path {
		case "/read":
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			got <- err
			_, _ = io.WriteString(w, "late")
		case "/past":
			_ = c.SetReadDeadline(time.Now().Add(-time.Second))
			_, err := io.ReadAll(r.Body)
			got <- err
		case "/cleared":
			_ = c.SetWriteDeadline(time.Now().Add(time.Hour))
			got <- c.SetWriteDeadline(time.Time{})
			_, _ = io.WriteString(w, "fine")
		case "/write":
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			for {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					got <- err
					return
				}
			}
		}
	})
	s := newStand(t, driver, http.NotFoundHandler(), func(_ *Head, p *Plan) { p.Forward, p.Serve = nil, handler })

	body, upload := io.Pipe()
	defer upload.Close()
	for _, path := range []string{"/read", "/past"} {
		res := s.do("POST", path, body)
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: reading ended with %v", path, err)
		}
		if b := s.read(res); path == "/read" && b != "late" {
			t.Errorf("%s: answered %q", path, b)
		}
		body, upload = io.Pipe()
		defer upload.Close()
	}
	if b := s.read(s.do("GET", "/cleared", nil)); b != "fine" || <-got != nil {
		t.Errorf("a deadline that was cleared: %q", b)
	}
	res := s.do("GET", "/write", nil) // the body is not read before the deadline
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writing ended with %v", err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err == nil || !strings.Contains(err.Error(), "INTERNAL_ERROR") {
		t.Errorf("the client saw %v, want a reset", err)
	}
}

// A path that net/http cannot parse reaches no handler.
func TestUnreadableTarget(t *testing.T) {
	onDrivers(t, func(t *testing.T, driver string) {
		s := newStand(t, driver, http.NotFoundHandler(), func(_ *Head, p *Plan) {
			p.Forward, p.Serve = nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("served %s", r.URL) })
		})
		must.Get(s.greet().Write(many(t, 1, "/%zz")))(t)
		if o := <-s.ended; o.Status != http.StatusBadRequest {
			t.Errorf("%+v", o)
		}
	})
}

func madeAnswer(status int, body []byte) *Answer {
	a := made(status)
	a.Body, a.Fields = body, append(a.Fields, field("etag", `"x"`))
	if body != nil {
		a.Fields = append(a.Fields, field("content-length", strconv.Itoa(len(body))))
	}
	return a
}

func TestAnswer(t *testing.T) { onDrivers(t, testAnswer) }

// Bodies of all sizes, many at once on one connection, some with uploads that are never read.
func testAnswer(t *testing.T, driver string) {
	bodies := map[string][]byte{"/none": nil, "/empty": {}, "/small": []byte("small"), "/frame": bytes.Repeat([]byte("0123456789abcdef"), 1024), "/large": bytes.Repeat([]byte("large "), 1<<19)}
	answers := map[string]*Answer{}
	for path, body := range bodies {
		answers[path] = madeAnswer(http.StatusOK, body)
	}
	answers["/none"] = madeAnswer(http.StatusNotModified, nil)
	s := newStand(t, driver, http.NotFoundHandler(), func(h *Head, p *Plan) { p.Forward, p.Answer = nil, answers[h.Path] })
	var all sync.WaitGroup
	for i := range 10 {
		for path, want := range bodies {
			all.Go(func() {
				ask := s.client.Get
				if i == 0 {
					ask = func(url string) (*http.Response, error) {
						return s.client.Post(url, "text/plain", bytes.NewReader(bodies["/frame"]))
					}
				}
				res, err := ask(s.url + path)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					return
				}
				defer res.Body.Close()
				got, err := io.ReadAll(res.Body)
				if err != nil || !bytes.Equal(got, want) || res.StatusCode != answers[path].Status || res.Header.Get("Etag") != `"x"` {
					t.Errorf("%s: %d with %d bytes, want %d: %v", path, res.StatusCode, len(got), len(want), err)
				}
				if at, err := http.ParseTime(res.Header.Get("Date")); err != nil || time.Since(at) > time.Minute {
					t.Errorf("%s: Date %q", path, res.Header.Get("Date"))
				}
			})
		}
	}
	all.Wait()
	for range 10 * len(bodies) {
		// A client that has its answer cancels its upload.
		if o := <-s.ended; o.Reason != ReasonNone && o.Reason != ReasonClientReset || o.Status == 0 || o.Endpoint != nil {
			t.Errorf("outcome %+v", o)
		}
	}
}
