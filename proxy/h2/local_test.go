package h2

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

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
