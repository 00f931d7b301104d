package h2

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func madeAnswer(status int, body []byte) *Answer {
	a := &Answer{Status: status, Body: body, Fields: []hpack.HeaderField{field(":status", strconv.Itoa(status)), field("etag", `"x"`)}}
	if body != nil {
		a.Fields = append(a.Fields, field("content-length", strconv.Itoa(len(body))))
	}
	return a
}

func TestAnswer(t *testing.T) { onDrivers(t, testAnswer) }

// Bodies of all sizes, many at a time on one connection and with uploads that nobody wants.
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
		// A client that has its answer gives up its upload.
		if o := <-s.ended; o.Reason != ReasonNone && o.Reason != ReasonClientReset || o.Status == 0 || o.Endpoint != nil {
			t.Errorf("outcome %+v", o)
		}
	}
}

// What waits for a client that does not read is where it always was: the connection holds one output's worth of it at most, whoever else asks.
func TestAnswerWaitsWhereItIs(t *testing.T) {
	body := make([]byte, 10<<20)
	r := newRig(t)
	r.decide = func(*Head, func(Plan)) (Plan, bool) {
		return Plan{Answer: madeAnswer(http.StatusOK, body), Done: func(o Outcome) { r.outcomes = append(r.outcomes, o) }}, true
	}
	c := r.client()
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = c.fr.WriteWindowUpdate(0, 1<<30)
	c.flush()
	c.silent = true
	const streams = 50
	for i := range uint32(streams) {
		c.get(1 + 2*i)
	}
	if got := len(c.c.out) + c.c.inflight; got > r.e.lim.writeLimit+streams*256 || r.e.count.queued.Load() != 0 {
		t.Errorf("%d bytes of output, %d in queues", got, r.e.count.queued.Load())
	}
	c.rst(1, http2.ErrCodeCancel)
	if len(r.outcomes) != 1 || r.outcomes[0].Reason != ReasonClientReset || r.outcomes[0].Status != http.StatusOK {
		t.Errorf("outcomes after a reset: %+v", r.outcomes)
	}
	if s := c.c.streams[3]; s == nil || s.half[down].q.size == 0 {
		t.Error("another stream has lost its body")
	}
	if n := len(c.c.streams); n != streams-1 {
		t.Errorf("%d streams are left, want all but one", n)
	}
}
