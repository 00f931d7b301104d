package h2

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// smallRooms starts a backend that allows few streams per connection and takes 10 ms per request.
func smallRooms(t *testing.T, streams int) *httptest.Server {
	b := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		<-time.After(10 * time.Millisecond) // processing time
		fmt.Fprint(w, n)
	}))
	b.EnableHTTP2 = true
	b.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
	b.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	b.StartTLS()
	t.Cleanup(b.Close)
	return b
}

// crowdOf has clients send their requests concurrently, on one connection per client, every other
// one with a body. It returns the errors.
func crowdOf(t *testing.T, addr string, clients, each int) []string {
	var mu sync.Mutex
	var wrong []string
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range clients {
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
		cc := must.Get(tr.NewClientConn(ctx, "https", addr))(t)
		defer cc.Close()
		for i := range each {
			wg.Go(func() {
				if err := askRoom(ctx, cc, addr, 1000*(i%2)); err != nil {
					mu.Lock()
					defer mu.Unlock()
					wrong = append(wrong, err.Error())
				}
			})
		}
	}
	wg.Wait()
	return wrong
}

// askRoom sends size bytes, and expects their number as the answer.
func askRoom(ctx context.Context, cc *http.ClientConn, addr string, size int) error {
	method, body := http.MethodGet, io.Reader(nil)
	if size > 0 {
		method, body = http.MethodPost, strings.NewReader(strings.Repeat("b", size))
	}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+addr+"/", body)
	if err != nil {
		return err
	}
	res, err := cc.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || string(p) != strconv.Itoa(size) {
		return fmt.Errorf("%s: %d, %q, %w", method, res.StatusCode, p, err)
	}
	return nil
}

// However few streams per connection a backend allows, no request is lost, and none uses up
// retries.
func TestFewStreamsAConnection(t *testing.T) {
	for _, streams := range []int{1, 5, 20} {
		for _, shape := range []struct{ clients, each int }{{4, 50}, {4, 95}, {10, 100}} {
			t.Run(fmt.Sprintf("%d, %dx%d", streams, shape.clients, shape.each), func(t *testing.T) {
				b := smallRooms(t, streams)
				var charged atomic.Int32
				plan := forward(endpoint(b.Listener.Addr().String()))
				plan.Deadline, plan.Retries = time.Minute, 2
				plan.Budget = func() bool { charged.Add(1); return true }
				s := &stand{t: t}
				s.start(Config{Shards: 1, Decide: func(_ *ConnInfo, h *Head, _ func(Plan)) (Plan, bool) {
					p := plan
					p.Again = h.Method == http.MethodGet
					return p, true
				}})
				if wrong := crowdOf(t, s.addr, shape.clients, shape.each); len(wrong) > 0 {
					t.Errorf("%d of %d requests failed: %s", len(wrong), shape.clients*shape.each, wrong[0])
				}
				if n := charged.Load(); n > 0 {
					t.Errorf("%d retries were charged", n)
				}
			})
		}
	}
}
