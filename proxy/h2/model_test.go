package h2

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// exchange is one request, and what the backend does with it.
type exchange struct {
	Method   string
	Upload   []int // sizes of the pieces of the request's body; nil: no body
	Declared bool  // the request has a Content-Length

	Interim  bool // 103 first
	Status   int
	Reads    string // when it reads the request's body: "all" of it first, "none", or "after" the answer
	Pieces   []int  // sizes of the pieces of the response's body
	Length   bool   // the response has a Content-Length
	Flush    bool   // each piece is flushed
	Trailers int    // trailers of the response
	Abort    int    // the backend resets the stream after this many pieces; -1: never
	Large    int    // size of an additional field, in both directions

	Leave int // the client cancels after this many bytes, and the backend waits for that; -1: never
}

// result is the client's view of an exchange.
type result struct {
	Status   int
	Fields   string
	Interims string
	Body     string // a digest, or "reset" if it was reset
	Trailers string
}

func randomExchange(rnd *rand.Rand) exchange {
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	sizes := func() []int {
		out := make([]int, rnd.IntN(5))
		for i := range out {
			out[i] = []int{0, 1, 100, 5000, 16384, 20000, 100_000}[rnd.IntN(7)]
		}
		return out
	}
	x := exchange{
		Method: pick("GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"), Declared: rnd.IntN(2) == 0,
		Interim: rnd.IntN(8) == 0, Status: []int{200, 200, 200, 201, 204, 304, 404, 500}[rnd.IntN(8)],
		Reads: pick("all", "all", "none", "after"), Pieces: sizes(), Length: rnd.IntN(2) == 0, Flush: rnd.IntN(2) == 0,
		Trailers: max(0, rnd.IntN(6)-3), Abort: -1, Leave: -1,
	}
	if x.Method == "POST" || x.Method == "PUT" || x.Method == "PATCH" {
		if x.Upload = sizes(); sum(x.Upload) == 0 {
			x.Upload = nil // the end of an empty body may or may not come with the head
		}
	}
	if rnd.IntN(10) == 0 {
		x.Large = rnd.IntN(60_000)
	}
	if x.Reads == "after" && x.Status > 299 {
		x.Reads = "none" // net/http's client stops its upload at such a status, and the backend would wait for the rest
	}
	bodyless := x.Method == "HEAD" || x.Status == 204 || x.Status == 304
	if bodyless {
		x.Pieces, x.Length, x.Trailers = nil, false, 0
	}
	switch {
	case bodyless:
	case rnd.IntN(6) == 0:
		x.Abort, x.Flush, x.Length = rnd.IntN(len(x.Pieces)+1), true, false
	case rnd.IntN(6) == 0 && sum(x.Pieces) > 0:
		x.Leave, x.Flush, x.Length, x.Reads = 1+rnd.IntN(sum(x.Pieces)), true, false, "none"
	case sum(x.Pieces) == 0:
		x.Length = true // net/http's server would add it if the end comes with the head
	}
	return x
}

func sum(v []int) int {
	n := 0
	for _, k := range v {
		n += k
	}
	return n
}

func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((i + seed) * 31 >> 3)
	}
	return b
}

func crcOf(p []byte) string { return fmt.Sprintf("%x", crc32.ChecksumIEEE(p)) }

// perform runs the exchange through one of the proxies.
func (x exchange) perform(ctx context.Context, t *testing.T, client *http.Client, base, path string, b *modelBackend) result {
	var res result
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		res.Interims += fmt.Sprint(code, h["Link"])
		return nil
	}})
	var body io.Reader
	if x.Upload != nil {
		var all []byte
		for i, n := range x.Upload {
			all = append(all, pattern(i, n)...)
		}
		if body = io.NopCloser(bytes.NewReader(all)); x.Declared {
			body = bytes.NewReader(all)
		}
	}
	req, err := http.NewRequestWithContext(ctx, x.Method, base+path+"?a=%2f&b", body)
	if err != nil {
		t.Error(err)
		return res
	}
	raw, _ := json.Marshal(x)
	req.Header.Set("X-Exchange", string(raw))
	req.Header["X-Multi"] = []string{"1", "2", ""}
	if x.Large > 0 {
		req.Header.Set("X-Large", strings.Repeat("l", x.Large))
	}
	r, err := client.Do(req)
	if err != nil && x.Abort >= 0 {
		return result{Body: "reset", Interims: res.Interims}
	}
	if err != nil {
		return result{Body: err.Error()}
	}
	defer r.Body.Close()
	res.Status = r.StatusCode
	for _, name := range []string{"X-Digest", "X-Saw", "X-Back", "X-Large", "Content-Length", "Content-Type"} {
		res.Fields += fmt.Sprintf("%s=%q ", name, r.Header[name])
	}
	if x.Leave >= 0 {
		got := make([]byte, x.Leave)
		_, err := io.ReadFull(r.Body, got)
		res.Body = fmt.Sprint("left ", crcOf(got), err)
		_ = r.Body.Close()
		select {
		case <-b.gone(path):
		case <-ctx.Done():
			res.Body += ", the backend never heard of it"
		}
		return res
	}
	p, err := io.ReadAll(r.Body)
	if res.Body = fmt.Sprint(len(p), " ", crcOf(p)); err != nil {
		return result{Body: "reset", Interims: res.Interims} // how much came before the reset, even the head, depends on timing
	}
	for i := range x.Trailers {
		res.Trailers += r.Trailer.Get(fmt.Sprint("X-T", i)) + " "
	}
	return res
}

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
	model, client := startModel(t, s.backend.Listener.Addr().String()), &http.Client{Transport: newTransport(t)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var all errgroup.Group
	all.SetLimit(16)
	for i := range 200 {
		x := randomExchange(rnd)
		all.Go(func() error {
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
				return fmt.Errorf("exchange %+v: nothing to compare with", x)
			}
			check.Same(t, want, got, "exchange %+v with net/http, and with the engine", x)
			return nil
		})
	}
	must.Do(t, all.Wait())
}

// startModel starts a net/http server with a ReverseProxy that follows the plan.
func startModel(t *testing.T, backend string) string {
	return newBackend(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: backend})
			r.Out.URL.RawQuery = r.In.URL.RawQuery
		},
		Transport: newTransport(t), FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}).URL
}
