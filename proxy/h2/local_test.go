package h2

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func newLocal(t *testing.T, h http.HandlerFunc) *stand {
	return newStand(t, "loop", nil, func(_ *wire.Head, p *engine.Plan) { p.Forward, p.Serve = nil, h })
}

func TestLocalDeadlines(t *testing.T) {
	got, headed := make(chan error, 1), make(chan struct{})
	s := newLocal(t, func(w http.ResponseWriter, r *http.Request) {
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
			_, _ = io.Copy(io.Discard, r.Body) // it has none
			_ = c.SetWriteDeadline(time.Now().Add(time.Hour))
			err = c.SetWriteDeadline(time.Time{})
			_, _ = io.WriteString(w, "fine")
		case "/write":
			_ = c.Flush()
			<-headed
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			for err == nil {
				_, err = w.Write(make([]byte, 32<<10))
			}
		case "/gone":
			_ = c.Flush()
			if _, err = io.ReadAll(r.Body); errors.Is(err, errStreamGone) {
				_, err = w.Write(make([]byte, 32<<10))
			}
		}
		got <- err
	})
	for _, path := range []string{"/read", "/past"} {
		body, upload := io.Pipe()
		defer upload.Close()
		s.reads(s.do("POST", path, body), "late")
		check.Is(t, os.ErrDeadlineExceeded, <-got, "%s: reading", path)
	}
	s.reads(s.do("GET", "/cleared", nil), "fine")
	must.Do(t, <-got)
	res := s.do("GET", "/write", nil) // the body is not read before the deadline
	close(headed)
	check.Is(t, errStreamGone, <-got, "writing")
	check.Fault(t, "INTERNAL_ERROR", check.Err(io.Copy(io.Discard, res.Body)), "what the client saw")
	body, upload := io.Pipe()
	defer upload.Close()
	must.Do(t, s.do("POST", "/gone", body).Body.Close())
	check.Is(t, errStreamGone, <-got, "reading, or writing, after the client has gone")
}

// Of a HEAD response the length is known only if the handler has written the body (RFC 9110 §8.6).
func TestLocalLength(t *testing.T) {
	s := newLocal(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.RawQuery) })
	for _, tt := range []struct {
		method, query string
		want          int64
	}{{"GET", "", 0}, {"GET", "five!", 5}, {"HEAD", "", -1}, {"HEAD", "five!", 5}} {
		check.Same(t, tt.want, s.do(tt.method, "/?"+tt.query, nil).ContentLength, "%s of %q: length", tt.method, tt.query)
	}
}

// A path that net/http cannot parse reaches no handler.
func TestUnreadableTarget(t *testing.T) {
	s := newLocal(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("served %s", r.URL) })
	must.Do(t, s.greet().gets(1, "/%zz"))
	check.Same(t, http.StatusBadRequest, (<-s.ended).Status, "status")
}

func made(status int) *engine.Answer {
	return &engine.Answer{Status: status, Fields: []hpack.HeaderField{field(":status", strconv.Itoa(status))}}
}

func madeAnswer(status int, body []byte) *engine.Answer {
	a := made(status)
	a.Body, a.Fields = body, append(a.Fields, field("etag", `"x"`), field("content-length", strconv.Itoa(len(body))))
	return a
}

// Answers have bodies of all sizes, also to a request whose body nobody reads.
func TestAnswer(t *testing.T) {
	answers := map[string]*engine.Answer{"/none": made(http.StatusNotModified)}
	for path, n := range map[string]int{"/empty": 0, "/small": 10, "/frame": 16 << 10, "/large": 3 << 20} {
		answers[path] = madeAnswer(http.StatusOK, bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n])
	}
	s := newStand(t, "loop", nil, func(h *wire.Head, p *engine.Plan) { p.Forward, p.Answer = nil, answers[h.Path] })
	for path, want := range answers {
		for _, method := range []string{"GET", "POST"} {
			res := s.do(method, path, bytes.NewReader(answers["/frame"].Body))
			s.reads(res, string(want.Body))
			check.Same(t, want.Status, res.StatusCode, "%s: status", path)
			check.Same(t, true, time.Since(must.Get(http.ParseTime(res.Header.Get("Date")))(t)) <= time.Minute, "%s: Date %s", path, res.Header.Get("Date"))
			// A client that has its answer cancels its upload.
			o := <-s.ended
			check.Same(t, true, (o.Reason == engine.ReasonNone || o.Reason == engine.ReasonClientReset) && o.Status != 0 && o.Endpoint == nil, "outcome %+v", o)
		}
	}
}

// A panic in the engine is logged with its stack, and ends the connection that caused it; one in a handler of this
// process ends its response. The process and all other requests continue (panics.txtar has all the places).
func TestPanicEndsItsConnection(t *testing.T) {
	var log logbook.Book
	b := newHolding()
	s := newStand(t, "loop", b, func(h *wire.Head, p *engine.Plan) {
		switch h.Path {
		case "/engine":
			panic("deciding")
		case "/handler":
			p.Forward, p.Serve = nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })
		}
	}, func(c *Config) { c.Shards, c.Logger = 1, slog.New(slog.NewTextHandler(&log, nil)) })
	s.panics = 3
	held := s.begun(s.do("GET", "/hold", nil)) // by another client, over the same connection to the backend
	for range s.panics {
		c := s.greet()
		must.Do(t, c.gets(1, "/engine"))
		for err := error(nil); err == nil; {
			_, err = c.fr.ReadFrame()
		}
	}
	check.Same(t, true, check.Err(s.client.Get(s.url+"/handler")) != nil, "there is no answer of a handler that panicked")
	close(b.release)
	s.reads(held, "fine")
	s.reads(s.do("GET", "/", nil), "fine")
	check.Same(t, s.panics, s.caught(), "panics")
	for _, text := range []string{"engine panicked", "boom"} {
		must.Soon(t, 10*time.Second, text+" is logged with its stack", func() bool {
			_, line, logged := strings.Cut(log.String(), text)
			return logged && strings.Contains(line, "local_test.go")
		})
	}
}
