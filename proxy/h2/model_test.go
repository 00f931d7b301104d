package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// exchange is one request and what the backend is to make of it.
type exchange struct {
	Method   string
	Upload   []int // sizes of the pieces of the request's body; nil: it has none
	Declared bool  // the request declares its length

	Interim  bool // 103 first
	Status   int
	Reads    string // "all" of the request's body before it answers, "none", or "after" the answer
	Pieces   []int  // sizes of the pieces of the response's body
	Length   bool   // the response declares its length
	Flush    bool   // each piece leaves at once
	Trailers int    // trailers of the response
	Abort    int    // the backend resets the stream after this many pieces; -1: it does not
	Large    int    // bytes of an additional field, both ways

	Leave int // the client gives up after this many bytes, which the backend waits for; -1: it does not
}

// result is what the client saw of it.
type result struct {
	Status   int
	Fields   string
	Interims string
	Body     string // a digest, or "reset" when it broke off
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
			x.Upload = nil // whether the end of an empty body comes with the head is a matter of time
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
		x.Length = true // net/http's server would add it, if the end comes with the head
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
		b[i] = byte(i*7 + seed)
	}
	return b
}

// modelBackend does what the exchange in the request's X-Exchange says. left gets the name of each request that was given up.
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
	w.Header().Set("Content-Type", "text/x-model") // net/http's server would add one of its own to what it forwards
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

func crcOf(p []byte) string { return fmt.Sprintf("%x", crc32.ChecksumIEEE(p)) }

// perform has the exchange done over one of the proxies.
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
		return result{Body: "reset", Interims: res.Interims} // how much came before it, the head even, is a matter of time
	}
	for i := range x.Trailers {
		res.Trailers += r.Trailer.Get(fmt.Sprint("X-T", i)) + " "
	}
	return res
}

// TestModel has random exchanges done at once over the lane and over net/http with httputil.ReverseProxy, to the same backend: a client
// must not be able to tell them apart.
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
	seed := rand.Uint64() //nolint:gosec // a test
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16) // how many run at once
	var stuck atomic.Int32
	for i := range 300 {
		x := randomExchange(rnd)
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			path := fmt.Sprintf("/%d", i)
			ask := func(client *http.Client, base, path string) (result, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				return x.perform(ctx, t, client, base, path, b), ctx.Err()
			}
			got, err := ask(s.client, s.url, path+"/lane")
			if err != nil {
				t.Errorf("exchange %+v got stuck: %+v", x, got)
			}
			want, err := ask(client, model, path+"/model")
			if err != nil {
				// It happens that net/http does, when an upload meets an early response: that is no model.
				t.Logf("exchange %+v: net/http got stuck", x)
				stuck.Add(1)
				return
			}
			want.Fields = strings.ReplaceAll(want.Fields, "/model", "/lane")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("exchange %+v (-net/http +lane):\n%s", x, diff)
			}
		})
	}
	wg.Wait()
	if n := stuck.Load(); n > 10 {
		t.Errorf("net/http got stuck %d times: too little was compared", n)
	}
}

// startModel starts net/http with a ReverseProxy that does what the lane's plan says.
func startModel(t *testing.T, backend string) (string, *http.Client) {
	target := &url.URL{Scheme: "https", Host: backend}
	tr := &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test server of ours
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.URL.RawQuery = r.In.URL.RawQuery }, Transport: tr,
		FlushInterval: -1, ErrorLog: quiet,
	})
	front.EnableHTTP2 = true
	front.Config.ErrorLog = quiet
	front.StartTLS()
	client := front.Client()
	out := &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test server of ours
	client.Transport = out
	t.Cleanup(func() {
		out.CloseIdleConnections()
		front.Close()
		tr.CloseIdleConnections()
	})
	return front.URL, client
}
