//go:build e2e

package faults

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testLimits fills a Fairlead with a small limit of concurrent requests.
func testLimits(t *testing.T, d *door) {
	const most, writes = 6, 4
	x := d.w.newDoor(t, d.lane, fmt.Sprintf("--max-requests-inflight=%d", most), fmt.Sprintf("--max-mutating-requests-inflight=%d", writes))
	var slow []*backend
	for range 3 { // one backend may use only half of the limit
		b, s := x.backend(t, 1, extension.Config{Record: -1})
		must.Do(t, s[0].Set(extension.Fault{Kind: extension.Hang, Path: b.widgets()}))
		slow = append(slow, b)
	}
	c := d.w.client()
	ctx, cancel := context.WithCancel(t.Context())
	var flying sync.WaitGroup
	defer flying.Wait()
	defer cancel()
	hang := func(method string, b *backend, n int) {
		for range n {
			flying.Go(func() {
				_, _ = ask.Do(ctx, c, method, x.Endpoint.URL+b.widgets(), nil, map[string]string{http.MethodPost: "{}"}[method])
			})
		}
	}
	full := func(t *testing.T, method string, b *backend) {
		t.Helper()
		eventually(t, longest, "full", func() bool {
			answered := make(chan ask.Reply, 1)
			flying.Go(func() {
				if reply, err := ask.Do(ctx, c, method, x.Endpoint.URL+b.widgets(), nil, ""); err == nil {
					answered <- reply
				}
			})
			select {
			case got := <-answered:
				if got.Code != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" {
					t.Fatalf("%d, Retry-After %q, want 429 and a Retry-After", got.Code, got.Header.Get("Retry-After"))
				}
				return true
			case <-time.After(300 * time.Millisecond): // it got a place and hangs: one or two of the concurrent requests may have been refused
				return false
			}
		})
	}
	t.Run("reads", func(t *testing.T) {
		hang(http.MethodGet, slow[0], 3)
		hang(http.MethodGet, slow[1], 3)
		full(t, http.MethodGet, slow[2])
	})
	t.Run("the local apiserver has no limit of ours", func(t *testing.T) {
		if err := ask.Serves(t.Context(), c, x.Endpoint.URL+"/api/v1/namespaces/default"); err != nil {
			t.Error(err)
		}
	})
	t.Run("writes", func(t *testing.T) {
		hang(http.MethodPost, slow[1], 2)
		hang(http.MethodPost, slow[2], 2)
		full(t, http.MethodPost, slow[2])
	})
}

// testRetryAfter stops a Fairlead with a running request, and checks its answers to new requests on
// open and new connections.
func testRetryAfter(t *testing.T, d *door) {
	x := d.w.newDoor(t, d.lane, "--shutdown-send-retry-after", "--shutdown-delay-duration=500ms")
	b, s := x.backend(t, 1, extension.Config{})
	must.Do(t, s[0].Set(extension.Fault{Kind: extension.Slow, Delay: 4 * time.Second, Path: b.widgets() + "/widget-001"}))
	slow := (&volley.Load{Every: time.Second, Clients: d.w.clients(1), Make: func(int) (string, string, string) {
		return http.MethodGet, x.Endpoint.URL + b.widgets() + "/widget-001", ""
	}}).Start(t)
	suite.Pause(t, 200*time.Millisecond)
	must.Do(t, x.Part.Signal(syscall.SIGTERM))
	statuses := map[int]int{}
	h1, h2 := h1Clients(d.w.admin, 1)[0], d.w.client()
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); {
		for _, c := range []*http.Client{h1, h2} {
			res, err := c.Get(x.Endpoint.URL + b.widgets() + "/widget-002")
			if err != nil {
				t.Fatalf("while a request is running: %v", err)
			}
			res.Body.Close()
			statuses[res.StatusCode]++
			if res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") == "" {
				t.Fatal("429 without Retry-After")
			}
		}
		suite.Pause(t, 50*time.Millisecond)
	}
	t.Logf("answers by status: %v", statuses)
	if statuses[http.StatusOK] == 0 || statuses[http.StatusTooManyRequests] == 0 || len(statuses) != 2 {
		t.Errorf("answers by status: %v, want 200 during the delay and 429 after it", statuses)
	}
	shots := slow.Stop()
	if shots[0].Failed() {
		t.Errorf("the running request: %s", &shots[0])
	}
	x.ends(t, longest)
}
