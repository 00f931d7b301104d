package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// logged is the libraries' log in this package's tests. It is set before anything logs, because
// client-go may log for a while after its test has ended.
var logged logbook.Book

// A client that disconnects during a list is not logged as an error; the library's other messages
// are.
func TestLogOfClientsThatGo(t *testing.T) {
	d, before, answered := aloneDoor(t), len(logged.String()), make(chan struct{})
	must.Run(t, d.registry.Run)
	must.Run(t, d.apiServices.Run)
	server := inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.apiServices.ServeHTTP(w, r)
		answered <- struct{}{}
	})}
	for n := 0; n < 3; {
		res := must.Get(server.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/apiregistration.k8s.io/v1/apiservices", nil)))(t)
		_ = res.Body.Close() // after the head
		<-answered
		if res.StatusCode == http.StatusOK { // otherwise the server has not read the table yet
			n++
		}
	}
	if text := logged.String()[before:]; strings.Contains(text, "level=ERROR") {
		t.Errorf("logged:\n%s", text)
	}
	klog.ErrorS(context.DeadlineExceeded, "another one")
	if text := logged.String()[before:]; !strings.Contains(text, "another one") {
		t.Errorf("logged:\n%s", text)
	}
}

type small struct {
	bytes.Buffer
	room int
}

func (s *small) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p[:min(len(p), s.room)])
	if s.room -= n; n < len(p) {
		err = errors.New("no space left")
	}
	return n, err
}

func (s *small) Close() error { return nil }

func TestWholeLines(t *testing.T) {
	disk := &small{room: 6}
	w := &wholeLines{WriteCloser: disk}
	for _, room := range []int{6, 0, 0, 1, 100} {
		disk.room = max(disk.room, room)
		_, _ = w.Write([]byte("line\n")) // some of these fail
	}
	if got, want := disk.String(), "line\nl\nline\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
