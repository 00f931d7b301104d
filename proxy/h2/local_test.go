package h2

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// newLocal starts a stand whose requests are served by h.
func newLocal(t *testing.T, driver string, h http.HandlerFunc) *stand {
	return newStand(t, driver, nil, func(_ *Head, p *Plan) { p.Forward, p.Serve = nil, h })
}

func TestServeLocal(t *testing.T) { onDrivers(t, testServeLocal) }

func testServeLocal(t *testing.T, driver string) {
	s := newLocal(t, driver, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/x", "/":
			_, _ = io.WriteString(w, r.URL.Path[1:])
		case "/sum":
			_, _ = io.WriteString(w, "x")
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"Content-Length", "2") // belongs into a head
		case "/sum/alone":
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		case "/echo":
			w.Header().Set("Trailer", "X-T")
			_, _ = io.Copy(w, r.Body)
			w.Header().Set("X-T", "end"+r.Trailer.Get("X-Up"))
		case "/panic":
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/short":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "abc")
		}
	})
	const text = "text/plain; charset=utf-8"
	for _, tt := range []struct {
		method, path, body, media string
		length                    int64
		sum                       string // the trailer
	}{
		{"GET", "/x", "x", text, 1, ""}, {"HEAD", "/x", "", text, 1, ""}, {"GET", "/", "", "", 0, ""},
		{"GET", "/sum", "x", text, 1, "1"}, {"GET", "/sum/alone", "", "", 0, "1"},
	} {
		res := s.do(tt.method, tt.path, nil)
		s.reads(res, tt.body)
		if res.Header.Get("Content-Type") != tt.media || res.ContentLength != tt.length || res.Header.Get("Date") == "" ||
			res.Trailer.Get("X-Sum") != tt.sum || tt.sum != "" && len(res.Trailer) != 1 {
			t.Errorf("%s %s: %d bytes, %v, trailers %v", tt.method, tt.path, res.ContentLength, res.Header, res.Trailer)
		}
	}
	body := strings.Repeat("0123456789", 200_000)
	req := must.Get(http.NewRequestWithContext(t.Context(), "PUT", s.url+"/echo", io.NopCloser(strings.NewReader(body))))(t)
	req.Trailer = http.Header{"X-Up": {"up"}}
	res := must.Get(s.client.Do(req))(t)
	s.reads(res, body)
	check.Same(t, "endup", res.Trailer.Get("X-T"), "trailer")
	for _, path := range []string{"/panic", "/short"} {
		res, err := s.client.Get(s.url + path)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		if err == nil {
			t.Errorf("%s: the client took a broken response as complete", path)
		}
	}
}

func TestLocalDeadlines(t *testing.T) { onDrivers(t, testLocalDeadlines) }

func testLocalDeadlines(t *testing.T, driver string) {
	got := make(chan error, 1)
	s := newLocal(t, driver, func(w http.ResponseWriter, r *http.Request) {
		c, soon := http.NewResponseController(w), time.Now().Add(20*time.Millisecond)
		var err error
		switch r.URL.Path {
		case "/read", "/past":
			if r.URL.Path == "/past" {
				soon = time.Now().Add(-time.Second)
			}
			_ = c.SetReadDeadline(soon)
			_, err = io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "late")
		case "/cleared":
			_ = c.SetWriteDeadline(time.Now().Add(time.Hour))
			err = c.SetWriteDeadline(time.Time{})
			_, _ = io.WriteString(w, "fine")
		case "/write":
			_ = c.SetWriteDeadline(soon)
			for err == nil {
				_, err = w.Write(make([]byte, 32<<10))
			}
		}
		got <- err
	})
	for _, path := range []string{"/read", "/past"} {
		body, upload := io.Pipe()
		defer upload.Close()
		s.reads(s.do("POST", path, body), "late")
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: reading ended with %v", path, err)
		}
	}
	s.reads(s.do("GET", "/cleared", nil), "fine")
	must.Do(t, <-got)
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
	s := newLocal(t, "loop", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("served %s", r.URL) })
	must.Do(t, s.greet().gets(1, "/%zz"))
	check.Same(t, http.StatusBadRequest, (<-s.ended).Status, "status")
}

// made returns an answer without a body.
func made(status int) *Answer {
	return &Answer{Status: status, Fields: []hpack.HeaderField{field(":status", strconv.Itoa(status))}}
}

func madeAnswer(status int, body []byte) *Answer {
	a := made(status)
	a.Body, a.Fields = body, append(a.Fields, field("etag", `"x"`), field("content-length", strconv.Itoa(len(body))))
	return a
}

// Answers have bodies of all sizes, also to a request whose body nobody reads.
func TestAnswer(t *testing.T) { onDrivers(t, testAnswer) }

func testAnswer(t *testing.T, driver string) {
	answers := map[string]*Answer{"/none": made(http.StatusNotModified)}
	for path, n := range map[string]int{"/empty": 0, "/small": 10, "/frame": 16 << 10, "/large": 3 << 20} {
		answers[path] = madeAnswer(http.StatusOK, bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n])
	}
	s := newStand(t, driver, nil, func(h *Head, p *Plan) { p.Forward, p.Answer = nil, answers[h.Path] })
	for path, want := range answers {
		for _, method := range []string{"GET", "POST"} {
			res := s.do(method, path, bytes.NewReader(answers["/frame"].Body))
			s.reads(res, string(want.Body))
			check.Same(t, want.Status, res.StatusCode, "%s: status", path)
			if at, err := http.ParseTime(res.Header.Get("Date")); err != nil || time.Since(at) > time.Minute {
				t.Errorf("%s: Date %q", path, res.Header.Get("Date"))
			}
			// A client that has its answer cancels its upload.
			if o := <-s.ended; o.Reason != ReasonNone && o.Reason != ReasonClientReset || o.Status == 0 || o.Endpoint != nil {
				t.Errorf("outcome %+v", o)
			}
		}
	}
}
