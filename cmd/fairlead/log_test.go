package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// logged is the libraries' log in this package's tests. It is set before anything logs, because
// client-go may log for a while after its test has ended.
var logged logbook.Book

// departed is a client that disconnects after the head.
type departed struct{ *httptest.ResponseRecorder }

func (departed) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A client that disconnects during a list is not logged as an error; the library's other messages
// are.
func TestLogOfClientsThatGo(t *testing.T) {
	d, before := aloneDoor(t), len(logged.String())
	must.Run(t, d.registry.Run)
	must.Run(t, d.apiServices.Run)
	must.Soon(t, 20*time.Second, "the server has read the table", func() bool {
		w := departed{httptest.NewRecorder()}
		d.apiServices.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/apiregistration.k8s.io/v1/apiservices", nil))
		return w.Code == http.StatusOK
	})
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
	w := &wholeLines{Writer: disk}
	for _, room := range []int{6, 0, 0, 1, 100} {
		disk.room = max(disk.room, room)
		_, _ = w.Write([]byte("line\n")) // some of these fail
	}
	if got, want := disk.String(), "line\nl\nline\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
