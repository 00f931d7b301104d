package backend

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Until its peer's SETTINGS have come a connection has one request: a second could be one more than they allow, and
// what is reserved beyond that net/http never sends (defect C14).
func TestLateSettings(t *testing.T) {
	for _, limit := range []uint32{1, assumedStreams, 250} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			const requests = 3
			arrived, proceed := make(chan struct{}, requests), make(chan struct{})
			s := newFaulty(t, h2, func(f *faulty, x *exchange) bool {
				if x.nth == 1 {
					arrived <- struct{}{}
					<-proceed
					if x.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: limit}) != nil {
						return false
					}
				}
				return ok(f, x)
			})
			s.late.Store(true)
			f := newFixture(t, nil)
			e := f.set(healthy(s.address))
			answered := make(chan error)
			for range requests {
				go func() {
					_, _, err := f.do(e, http.MethodGet, "")
					answered <- err
				}()
			}
			waitFor(t, "each request to have a connection", func() bool { return len(arrived) == requests })
			close(proceed)
			for range requests {
				if err := <-answered; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A crowd of requests is answered whatever few streams a connection of the backend may have.
func TestFewStreams(t *testing.T) {
	for _, limit := range []int{1, 5, 20} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, f := newMemoryFixture(t)
				n.streams = limit
				n.serve("10.0.0.1:443", h2, func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Millisecond) })
				defer n.stopAll()
				e := f.set(healthy("10.0.0.1:443"))
				start := time.Now()
				f.crowd(e, 400)
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// crowd sends n requests at once, each with the usual deadline.
func (f *fixture) crowd(e *registry.Entry, n int) {
	f.t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			req := newRequest(f.t, http.MethodGet, "")
			ctx, cancel := context.WithTimeout(req.Context(), time.Minute)
			defer cancel()
			res, err := f.RoundTrip(e, req.WithContext(ctx), false)
			if err != nil {
				f.t.Error(err)
				return
			}
			_ = res.Body.Close()
		})
	}
	wg.Wait()
}
