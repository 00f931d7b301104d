package h2

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// modelBackend does what X-Exchange of the request says. The channel of a path in left is closed
// when its client has canceled.
type modelBackend struct {
	mu   sync.Mutex
	left map[string]chan struct{} // guarded by mu
}

func (b *modelBackend) gone(name string) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left[name] == nil {
		b.left[name] = make(chan struct{})
	}
	return b.left[name]
}

func (b *modelBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var x exchange
	if err := json.Unmarshal([]byte(r.Header.Get("X-Exchange")), &x); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := http.NewResponseController(w)
	if x.Interim {
		w.Header().Set("Link", "early")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
	}
	digest := "unread"
	if x.Reads == "all" {
		p, err := io.ReadAll(r.Body)
		digest = fmt.Sprint(len(p), crcOf(p), err)
	}
	w.Header().Set("Content-Type", "text/x-model") // otherwise net/http's server would add one
	w.Header().Set("X-Digest", digest)
	w.Header().Set("X-Saw", fmt.Sprint(r.Method, r.RequestURI, r.ContentLength, r.Header["X-Multi"], len(r.Header.Get("X-Large"))))
	w.Header()["X-Back"] = []string{"1", "2"}
	if x.Large > 0 {
		w.Header().Set("X-Large", strings.Repeat("l", x.Large))
	}
	for i := range x.Trailers {
		w.Header().Add("Trailer", fmt.Sprint("X-T", i))
	}
	if x.Length {
		w.Header().Set("Content-Length", fmt.Sprint(sum(x.Pieces)))
	}
	w.WriteHeader(x.Status)
	if x.Flush {
		_ = c.Flush()
	}
	for i, n := range x.Pieces {
		if i == x.Abort {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(pattern(i, n))
		if x.Flush {
			_ = c.Flush()
		}
	}
	if x.Abort == len(x.Pieces) {
		panic(http.ErrAbortHandler)
	}
	if x.Leave >= 0 {
		<-r.Context().Done()
		close(b.gone(r.URL.Path))
		return
	}
	if x.Reads == "after" {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	for i := range x.Trailers {
		w.Header().Set(fmt.Sprint("X-T", i), strings.Repeat("t", i+1))
	}
}

// TestModel runs random exchanges concurrently over the engine and over net/http with
// httputil.ReverseProxy, to the same backend. Their results at the client must be equal.
func TestModel(t *testing.T) { onDrivers(t, testModel) }

func testModel(t *testing.T, driver string) {
	b := &modelBackend{left: map[string]chan struct{}{}}
	s := newStand(t, driver, b, func(h *Head, p *Plan) {
		p.Retries, p.Again = 1, h.Method == "GET"
		p.Fail = func(Outcome) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		}
	})
	model, client := startModel(t, s.backend.Listener.Addr().String())
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16) // limits the concurrent exchanges
	for i := range 400 / min(slower, 4) {
		x := randomExchange(rnd)
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			path := fmt.Sprintf("/%d", i)
			ask := func(limit time.Duration, client *http.Client, base, path string) (result, error) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				return x.perform(ctx, t, client, base, path, b), ctx.Err()
			}
			got, err := ask(20*time.Second, s.client, s.url, path+"/lane")
			if err != nil {
				t.Errorf("exchange %+v got stuck: %+v", x, got)
			}
			want, err := result{}, error(nil)
			for try := range 5 { // net/http sometimes gets stuck when an upload meets an early response; then it is tried again
				as := fmt.Sprint("/model", try)
				if want, err = ask(10*time.Second, client, model, path+as); err == nil {
					want.Fields = strings.ReplaceAll(want.Fields, as, "/lane")
					break
				}
				t.Logf("exchange %+v: net/http got stuck", x)
			}
			if err != nil {
				t.Errorf("exchange %+v: nothing to compare with", x)
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("exchange %+v (-net/http +engine):\n%s", x, diff)
			}
		})
	}
	wg.Wait()
}

// startModel starts a net/http server with a ReverseProxy that follows the plan.
func startModel(t *testing.T, backend string) (string, *http.Client) {
	target := &url.URL{Scheme: "https", Host: backend}
	tr := &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.URL.RawQuery = r.In.URL.RawQuery }, Transport: tr,
		FlushInterval: -1, ErrorLog: quiet,
	})
	front.EnableHTTP2 = true
	front.Config.ErrorLog = quiet
	front.StartTLS()
	client := front.Client()
	out := &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client.Transport = out
	t.Cleanup(func() {
		out.CloseIdleConnections()
		front.Close()
		tr.CloseIdleConnections()
	})
	return front.URL, client
}
