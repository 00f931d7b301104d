package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// logged is the libraries' log in this package's tests. It is set before anything logs, because
// client-go may log for a while after its test has ended.
var logged logbook.Book

// A client that disconnects during a list is not logged as an error; the library's other messages
// are.
func TestLogOfClientsThatGo(t *testing.T) {
	before := len(logged.String())
	in := registry.Input{APIServices: map[string]*apiregistrationv1.APIService{}, Options: &registry.Options{Directory: true}, Complete: true, Now: time.Unix(1_700_000_000, 0)}
	for i := range 500 {
		group := fmt.Sprintf("g%d.io", i)
		in.APIServices["v1."+group] = &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + group, Labels: map[string]string{"long": strings.Repeat("x", 1<<14)}},
			Spec:       apiregistrationv1.APIServiceSpec{Group: group, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 10},
		}
	}
	table := registry.Build(in, nil)
	server := must.Get(apiservices.New(apiservices.Config{Table: func() *registry.Table { return table }}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(ctx) })
	answered := make(chan struct{}, 10)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(w, r)
		answered <- struct{}{}
	}))
	t.Cleanup(func() {
		h.Close()
		cancel()
		running.Wait()
	})
	for n := 0; n < 3; {
		ctx, cancel := context.WithCancel(t.Context())
		r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, h.URL+"/apis/apiregistration.k8s.io/v1/apiservices", nil))(t)
		res, err := h.Client().Do(r)
		cancel() // after the head: the kernel's buffers cannot hold the rest
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
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
