package h2

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func (s *stand) do(method, path string, body io.Reader, header ...string) *http.Response {
	s.t.Helper()
	req := must.Get(http.NewRequestWithContext(s.t.Context(), method, s.url+path, body))(s.t)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (s *stand) read(res *http.Response) string {
	s.t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("reading the body: %v", err)
	}
	return string(b)
}

// reads checks a response's body.
func (s *stand) reads(res *http.Response, want string) {
	s.t.Helper()
	if got := s.read(res); got != want {
		s.t.Errorf("%s: got %d bytes, %.100q; want %d, %.100q", res.Request.URL.Path, len(got), got, len(want), want)
	}
}

// ends checks the reason of the next outcome; about identifies the request in the failure message.
func (s *stand) ends(want Reason, about ...any) {
	s.t.Helper()
	if o := <-s.ended; o.Reason != want {
		s.t.Errorf("%v: outcome %+v, want %s", about, o, want)
	}
}

func TestForwardGet(t *testing.T) { onDrivers(t, testForwardGet) }

func testForwardGet(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		check.Same(t, 2, r.ProtoMajor, "version of HTTP at the backend")
		w.Header().Set("X-Path", r.RequestURI)
		w.Header().Set("X-Got", fmt.Sprint(r.Header["X-A"], r.Header["X-Strip"], r.Header["X-Remote-User"]))
		_, _ = io.WriteString(w, strings.Repeat("x", 1024))
	}), func(_ *Head, p *Plan) {
		p.Remove = func(name string) bool { return name == "x-strip" }
		p.Set = append(p.Set, field("x-remote-user", "alice"))
	})
	for range 3 {
		res := s.do("GET", "/apis/a.b/v1?q=%2F&x", nil, "X-A", "1", "X-A", "2", "X-Strip", "no", "X-Remote-User", "mallory")
		if res.ProtoMajor != 2 || res.StatusCode != 200 || len(s.read(res)) != 1024 {
			t.Errorf("got %s %d", res.Proto, res.StatusCode)
		}
		check.Same(t, "/apis/a.b/v1?q=%2F&x", res.Header.Get("X-Path"), "path at the backend")
		check.Same(t, "[1 2] [] [alice]", res.Header.Get("X-Got"), "fields at the backend")
		o := <-s.ended
		if o.Status != 200 || o.Sent != 1024 || o.Reason != ReasonNone || o.Endpoint != s.ep || o.Duration <= 0 || o.Wait <= 0 {
			t.Errorf("outcome %+v", o)
		}
	}
}

func TestForwardEcho(t *testing.T) { onDrivers(t, testForwardEcho) }

func testForwardEcho(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		_, _ = io.Copy(w, r.Body)
	}), nil)
	for _, size := range []int{0, 1, 1000, 16384, 100_000, 5_000_000} {
		body := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		res := s.do("POST", "/", bytes.NewReader(body))
		s.reads(res, string(body))
	}
}

func TestForwardManyAtOnce(t *testing.T) { onDrivers(t, testForwardManyAtOnce) }

func testForwardManyAtOnce(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-T")
		_, _ = w.Write(b)
		w.Header().Set("X-T", r.URL.Path+r.Trailer.Get("X-Up"))
	}), nil)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			path := fmt.Sprintf("/%d", i)
			body := strings.Repeat(path, i*37)
			req, _ := http.NewRequestWithContext(t.Context(), "PUT", s.url+path, io.NopCloser(strings.NewReader(body)))
			req.Trailer = http.Header{"X-Up": {"up"}}
			res, err := s.client.Do(req)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil || string(b) != body || res.Trailer.Get("X-T") != path+"up" {
				t.Errorf("%s: %d, %v, %d of %d bytes, trailer %q", path, res.StatusCode, err, len(b), len(body), res.Trailer.Get("X-T"))
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return // a request without a response has no outcome to wait for
	}
	for range 300 {
		s.ends(ReasonNone)
	}
}

func TestForwardInterims(t *testing.T) { onDrivers(t, testForwardInterims) }

func testForwardInterims(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "a")
		w.WriteHeader(http.StatusEarlyHints)
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}), nil)
	var got []string
	trace := &httptrace.ClientTrace{
		Got100Continue: func() { got = append(got, "100") },
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			got = append(got, fmt.Sprint(code, h["Link"]))
			return nil
		},
	}
	req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", s.url, strings.NewReader("hello"))
	req.Header.Set("Expect", "100-continue")
	res := must.Get(s.client.Do(req))(t)
	check.Same(t, "hello", s.read(res), "body")
	if fmt.Sprint(got) == "[]" || !strings.Contains(fmt.Sprint(got), "103 [a]") {
		t.Errorf("interim responses %v", got)
	}
}

func TestForwardHeadAndNoContent(t *testing.T) { onDrivers(t, testForwardHeadAndNoContent) }

func testForwardHeadAndNoContent(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/204" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Length", "1234")
	}), nil)
	if res := s.do("HEAD", "/", nil); res.ContentLength != 1234 || s.read(res) != "" {
		t.Errorf("HEAD: length %d", res.ContentLength)
	}
	if res := s.do("DELETE", "/204", nil); res.StatusCode != 204 || s.read(res) != "" {
		t.Errorf("204: got %d", res.StatusCode)
	}
}

func TestServeLocal(t *testing.T) { onDrivers(t, testServeLocal) }

func testServeLocal(t *testing.T, driver string) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/small":
			_, _ = io.WriteString(w, `{"a":1}`)
		case "/large":
			for range 100 {
				_, _ = w.Write(bytes.Repeat([]byte("y"), 10_000))
			}
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
	s := newStand(t, driver, http.NotFoundHandler(), func(_ *Head, p *Plan) { p.Forward, p.Serve = nil, handler })
	res := s.do("GET", "/small", nil)
	if got := s.read(res); got != `{"a":1}` || res.ContentLength != 7 || res.Header.Get("Date") == "" ||
		res.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("small: %q %v", got, res.Header)
	}
	if res = s.do("HEAD", "/small", nil); res.ContentLength != 7 || s.read(res) != "" {
		t.Errorf("HEAD: %v", res.Header)
	}
	if res = s.do("GET", "/empty", nil); s.read(res) != "" || res.Header["Content-Type"] != nil {
		t.Errorf("empty: %v", res.Header)
	}
	s.reads(s.do("GET", "/large", nil), strings.Repeat("y", 1_000_000))
	body := strings.Repeat("0123456789", 200_000)
	req, _ := http.NewRequestWithContext(t.Context(), "PUT", s.url+"/echo", io.NopCloser(strings.NewReader(body)))
	req.Trailer = http.Header{"X-Up": {"up"}}
	res = must.Get(s.client.Do(req))(t)
	if got := s.read(res); got != body || res.Trailer.Get("X-T") != "endup" {
		t.Errorf("echo: %d bytes, trailer %q", len(got), res.Trailer)
	}
	for _, path := range []string{"/panic", "/short"} {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+path, nil)
		res, err := s.client.Do(req)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		if err == nil {
			t.Errorf("%s: the client took a broken response as complete", path)
		}
	}
}

// bodySize is the size of the bodies of TestLargeBodies. A run of go test -run LargeBodies
// ./proxy/h2 -body 1073741824 takes a minute.
var bodySize = flag.Int64("body", 64<<20/slower, "bytes of TestLargeBodies' bodies")

// patternReader returns n bytes that repeat with a prime period, so that lost, doubled or swapped
// bytes are detected.
type patternReader struct{ at, n int64 }

var periodic = pattern(0, 65521)

func (r *patternReader) Read(p []byte) (int, error) {
	if r.at == r.n {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), r.n-r.at)], periodic[r.at%int64(len(periodic)):])
	r.at += int64(n)
	return n, nil
}

// compare reads all of got and compares it with r.
func (r *patternReader) compare(got io.Reader) error {
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(got, a)
		k, _ := io.ReadFull(r, b)
		if n != k || !bytes.Equal(a[:n], b[:k]) {
			return errors.New("the body was changed or truncated")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func TestLargeBodies(t *testing.T) { onDrivers(t, testLargeBodies) }

func testLargeBodies(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			_, _ = io.Copy(w, &patternReader{n: *bodySize})
			return
		}
		if err := (&patternReader{n: *bodySize}).compare(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}), nil)
	s.client.Timeout = 0
	if err := (&patternReader{n: *bodySize}).compare(s.do("GET", "/", nil).Body); err != nil {
		t.Error(err)
	}
	if res := s.do("PUT", "/", io.NopCloser(&patternReader{n: *bodySize})); res.StatusCode != http.StatusOK {
		t.Errorf("upload: %d %s", res.StatusCode, s.read(res))
	}
}
