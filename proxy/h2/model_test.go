package h2

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

type exchange struct {
	Method   string
	Upload   []int // sizes of the pieces of the request's body; nil: no body
	Declared bool  // the request has a Content-Length
	Signed   bool  // its body has a trailer

	Interims int // that come first
	Status   int
	Reads    string // when it reads the request's body: "all" of it first, "none", or "after" the answer
	Pieces   []int  // sizes of the pieces of the response's body
	Length   bool   // the response has a Content-Length
	Flush    bool   // each piece is flushed
	Trailers int    // trailers of the response, the last of them unannounced
	Abort    int    // the backend resets the stream after this many pieces; -1: never
	Short    bool   // the body is shorter than its Content-Length
	Large    int    // size of an additional field, in both directions

	Leave int // the client cancels after this many bytes, and the backend waits for that; -1: never
}

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
		Interims: max(0, rnd.IntN(12)-9), Status: []int{200, 200, 200, 201, 204, 304, 404, 500}[rnd.IntN(8)],
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
	size := sum(x.Pieces)
	switch {
	case x.Status == 204 || x.Status == 304:
		x.Pieces, x.Length, x.Trailers = nil, false, 0
	case x.Method == "HEAD":
		x.Length, x.Trailers = true, 0 // otherwise net/http's server adds a length to some
	case rnd.IntN(6) == 0:
		x.Abort, x.Flush, x.Length = rnd.IntN(len(x.Pieces)+1), true, false
	case rnd.IntN(6) == 0 && size > 0:
		x.Leave, x.Flush, x.Length, x.Reads = 1+rnd.IntN(size), true, false, "none"
	case rnd.IntN(12) == 0 && size > 0:
		x.Short, x.Length = true, true
	case size == 0 && x.Flush:
		x.Length = true // net/http's server would add it if the end comes with the head
	}
	// The model's net/http server ends its connection if trailers come after the end of its answer.
	x.Signed = x.Upload != nil && x.Reads == "all" && rnd.IntN(3) == 0
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
		if body = iotest.DataErrReader(bytes.NewReader(all)); x.Declared {
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
	if x.Signed {
		req.Trailer = http.Header{"X-Up": {"up"}}
	}
	r, err := client.Do(req)
	if broken := x.Short || x.Abort >= 0; broken && (err != nil || r.StatusCode == http.StatusBadGateway) {
		return result{Body: "reset", Interims: res.Interims}
	}
	if err != nil {
		return result{Body: err.Error()}
	}
	defer r.Body.Close()
	res.Status = r.StatusCode
	for _, name := range []string{"X-Digest", "X-Saw", "X-Back", "Content-Length", "Content-Type"} {
		res.Fields += fmt.Sprintf("%s=%q ", name, r.Header[name])
	}
	res.Fields = strings.ReplaceAll(res.Fields, path, "PATH") + fmt.Sprint("large=", len(r.Header.Get("X-Large")), " dates=", len(r.Header["Date"]))
	if r.Header["Content-Length"] != nil {
		res.Fields += fmt.Sprint(" length=", r.ContentLength)
	}
	for i := range x.Trailers - 1 {
		_, announced := r.Trailer[fmt.Sprint("X-T", i)]
		res.Fields += fmt.Sprint(" announced=", announced)
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
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return result{Body: "ended, and looked complete to a client that does not count"}
	}
	if res.Body = fmt.Sprint(len(p), " ", crcOf(p)); err != nil {
		return result{Body: "reset", Interims: res.Interims} // how much came before the reset, even the head, depends on timing
	}
	res.Trailers = fmt.Sprint(r.Trailer)
	return res
}

// modelBackend does what X-Exchange of the request says. The channel of a path in left is closed
// when its client has canceled.
type modelBackend struct{ left sync.Map }

func (b *modelBackend) gone(name string) chan struct{} {
	c, _ := b.left.LoadOrStore(name, make(chan struct{}))
	return c.(chan struct{})
}

func (b *modelBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var x exchange
	if err := json.Unmarshal([]byte(r.Header.Get("X-Exchange")), &x); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := http.NewResponseController(w)
	for i := range x.Interims {
		w.Header().Set("Link", fmt.Sprint("early", i))
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
	}
	digest := "unread"
	if x.Reads == "all" {
		p, err := io.ReadAll(r.Body)
		digest = fmt.Sprint(len(p), crcOf(p), err, r.Trailer)
	}
	if x.Flush { // otherwise the server finds out
		w.Header().Set("Content-Type", "text/x-model")
	}
	w.Header().Set("X-Digest", digest)
	w.Header().Set("X-Saw", fmt.Sprint(r.Method, r.RequestURI, r.ContentLength, r.Header["X-Multi"], len(r.Header.Get("X-Large"))))
	w.Header()["X-Back"] = []string{"1", "2"}
	if x.Large > 0 {
		w.Header().Set("X-Large", strings.Repeat("l", x.Large))
	}
	for i := range x.Trailers - 1 {
		w.Header().Add("Trailer", fmt.Sprint("X-T", i))
	}
	if x.Short {
		w.Header().Set("Content-Length", fmt.Sprint(sum(x.Pieces)+1))
	} else if x.Length {
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
		if i == x.Trailers-1 {
			w.Header().Set(fmt.Sprint(http.TrailerPrefix, "X-T", i), "last")
			w.Header().Set(http.TrailerPrefix+"Content-Length", "1") // belongs into a head
		}
	}
}

// TestModel runs random exchanges concurrently over net/http with httputil.ReverseProxy, and over
// the engine, for clients and for guests to the same backend, and for clients to the backend's
// handler in this process. Their results must be equal.
func TestModel(t *testing.T) { onDrivers(t, testModel) }

func testModel(t *testing.T, driver string) {
	b := &modelBackend{}
	s := newStand(t, driver, b, func(h *wire.Head, p *engine.Plan) {
		p.Retries, p.Again = 1, h.Method == "GET"
		p.Fail = func(o engine.Outcome) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, fmt.Sprint(o.Reason, o.Err), http.StatusBadGateway)
			})
		}
		if strings.HasSuffix(h.Path, "/local") {
			p.Forward, p.Serve = nil, b
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
			ask := func(limit time.Duration, client *http.Client, base, way string) (result, error) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				return x.perform(ctx, t, client, base, fmt.Sprintf("/%d/%s", i, way), b), ctx.Err()
			}
			want, err := result{}, error(nil)
			for try := range 5 { // net/http sometimes gets stuck when an upload meets an early response; then it is tried again
				if want, err = ask(10*time.Second, client, model, fmt.Sprint("model", try)); err == nil {
					break
				}
				t.Logf("exchange %+v: net/http got stuck", x)
			}
			if err != nil {
				return fmt.Errorf("exchange %+v: nothing to compare with", x)
			}
			for _, way := range []string{"lane", "local", "guest"} {
				client, base := s.client, s.url
				if way == "guest" {
					client = &http.Client{Transport: s}
				}
				got, err := ask(20*time.Second, client, base, way)
				check.Is(t, nil, err, "exchange %+v got stuck as %s: %+v", x, way, got)
				if way == "guest" && want.Body == "reset" {
					got.Interims = want.Interims // a guest hears of the reset first
				}
				check.Same(t, want, got, "exchange %+v with net/http, and as %s", x, way)
			}
			return nil
		})
	}
	must.Do(t, all.Wait())
	must.Soon(t, 10*time.Second, "nothing is left", func() bool { return s.left() == [2]int64{} })
}
