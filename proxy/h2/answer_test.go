package h2

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

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
