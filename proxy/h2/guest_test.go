package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// hotel has guests (callers of RoundTrip) and a backend over real TLS.
type hotel struct {
	*stand
	plan Plan
}

func newHotel(t *testing.T, driver string, h http.Handler, config ...func(*Config)) *hotel {
	x := &hotel{stand: newStand(t, driver, h, nil, config...)}
	x.plan = forward(x.ep)
	x.plan.Done = x.done
	return x
}

func (x *hotel) ask(ctx context.Context, method, target string, body io.Reader, change ...func(*http.Request, *Plan)) (*http.Response, error) {
	x.t.Helper()
	r := must.Get(http.NewRequestWithContext(ctx, method, "https://front.example"+target, body))(x.t)
	p := x.plan
	for _, f := range change {
		f(r, &p)
	}
	return x.server.RoundTrip(r, nil, p)
}

func (x *hotel) must(method, target string, body io.Reader, change ...func(*http.Request, *Plan)) *http.Response {
	x.t.Helper()
	res := must.Get(x.ask(x.t.Context(), method, target, body, change...))(x.t)
	x.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// empty waits for the next n outcomes, and checks that no streams or bytes of guests are left.
func (x *hotel) empty(n int) {
	x.t.Helper()
	for range n {
		<-x.ended
	}
	for _, sh := range x.server.shards {
		sh.lock()
		if n, held := sh.e.Count.Streams.Load(), sh.e.Count.Queued.Load(); n > 0 || held > 0 {
			x.t.Errorf("%d streams, %d bytes of bodies are left", n, held)
		}
		sh.settle()
	}
}

func TestGuest(t *testing.T) { onDrivers(t, testGuest) }

func testGuest(t *testing.T, driver string) {
	x := newHotel(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header()["X-Got"] = []string{r.Method, r.Host, r.RequestURI, fmt.Sprint(r.Header["X-A"], r.Header["X-Strip"], r.Header["X-Remote-User"], r.Header["Te"])}
		w.Header().Set("X-Secret", "1")
		w.Header()["X-Two"] = []string{"1", "2"}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "hello")
	}))
	res := x.must("GET", "/apis/a.b/v1?q=%2F&x", nil, func(r *http.Request, p *Plan) {
		r.Header = http.Header{"X-A": {"1", "2"}, "X-Strip": {"no"}, "X-Remote-User": {"mallory"}, "Connection": {"x-a"}, "Te": {"gzip"}}
		p.Authority = "seen.example"
		p.Remove = func(name string) bool { return name == "x-strip" }
		p.RemoveResponse = func(name string) bool { return name == "x-secret" }
		p.Set = []hpack.HeaderField{field("x-remote-user", "alice")}
	})
	if got, want := fmt.Sprint(res.Header["X-Got"]), "[GET seen.example /apis/a.b/v1?q=%2F&x [1 2] [] [alice] []]"; got != want {
		t.Errorf("the backend saw %s, want %s", got, want)
	}
	if res.StatusCode != 202 || res.Status != "202 Accepted" || res.ProtoMajor != 2 || res.ContentLength != 5 || res.Request == nil {
		t.Errorf("got %+v", res)
	}
	if res.Header.Get("X-Secret") != "" || fmt.Sprint(res.Header["X-Two"]) != "[1 2]" {
		t.Errorf("header %v", res.Header)
	}
	x.reads(res, "hello")
	if o := <-x.ended; o.Status != 202 || o.Sent != 5 || o.Reason != ReasonNone || o.Endpoint != x.ep || o.Wait <= 0 || o.Answer <= 0 {
		t.Errorf("outcome %+v", o)
	}
	for method, length := range map[string]int64{http.MethodHead: 5, http.MethodDelete: -1} {
		res := x.must(method, "/", nil)
		x.reads(res, "")
		check.Same(t, length, res.ContentLength, "%s: length", method)
	}
	x.empty(2)
}

func TestGuestEcho(t *testing.T) { onDrivers(t, testGuestEcho) }

func testGuestEcho(t *testing.T, driver string) {
	x := newHotel(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T")
		w.(http.Flusher).Flush()
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-T", r.Trailer.Get("X-Up")+r.Trailer.Get("X-Strip")+fmt.Sprint(r.ContentLength))
		w.Header().Set(http.TrailerPrefix+"X-Unannounced", "1")
	}))
	for _, tt := range []struct {
		size     int
		trailers bool // and no declared length; the body comes byte by byte
		want     string
	}{{0, false, "0"}, {1, true, "up-1"}, {1000, false, "1000"}, {9000, true, "up-1"}, {5_000_000, false, "5000000"}} {
		body := bytes.Repeat([]byte("0123456789abcde\n"), tt.size/16+1)[:tt.size]
		var reader io.Reader = bytes.NewReader(body)
		if tt.size == 0 {
			reader = http.NoBody
		} else if tt.trailers {
			reader = iotest.OneByteReader(reader)
		}
		res := x.must("PUT", "/", reader, func(r *http.Request, p *Plan) {
			p.Retries = 1
			p.Remove = func(name string) bool { return name == "x-strip" }
			if tt.trailers {
				r.Trailer = http.Header{"X-Up": {"up"}, "X-Strip": {"no"}}
			}
		})
		_, announced := res.Trailer["X-T"]
		x.reads(res, string(body))
		if got := res.Trailer.Get("X-T"); got != tt.want || res.Trailer.Get("X-Unannounced") != "1" || !announced {
			t.Errorf("size %d: trailers %v, want %q, announced %v", tt.size, res.Trailer, tt.want, announced)
		}
		x.ends(ReasonNone)
	}
	x.empty(0)
}

// Interim heads reach the caller, who may refuse them. All of a response together must not exceed
// the limit of one head.
func TestGuestInterim(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, link := range []string{"</a>", "</b>"} {
			w.Header().Set("Link", link)
			if r.URL.Path == "/long" {
				w.Header().Set("X-Long", strings.Repeat("0123456789", 15_000))
			}
			w.WriteHeader(http.StatusEarlyHints)
			if r.URL.Path == "/refused" {
				return // net/http may still write the header of a stream that was reset
			}
		}
		w.Header().Del("Link")
		w.WriteHeader(http.StatusOK)
	}))
	var got []string
	refuse := error(nil)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		got = append(got, fmt.Sprint(code, h.Get("Link")))
		return refuse
	}})
	res := must.Get(x.ask(ctx, "GET", "/", nil))(t)
	check.Same(t, "[103</a> 103</b>] 200", fmt.Sprint(got, " ", res.StatusCode), "heads")
	_ = res.Body.Close()
	_, err := x.ask(t.Context(), "GET", "/long", nil)
	if f, ok := errors.AsType[*Failure](err); !ok || f.Reason != ReasonBadResponse {
		t.Errorf("long interim heads: %v", err)
	}
	refuse = errors.New("no hints, please")
	if _, err := x.ask(ctx, "GET", "/refused", nil); !errors.Is(err, refuse) {
		t.Errorf("got %v", err)
	}
	x.empty(3)
}

// A guest may leave at any time: nothing is left of it, and its stream at the backend is reset.
func TestGuestLeaves(t *testing.T) { onDrivers(t, testGuestLeaves) }

func testGuestLeaves(t *testing.T, driver string) {
	arrived, left := make(chan struct{}), make(chan struct{}, 10)
	x := newHotel(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			arrived <- struct{}{}
		case "/head":
			w.(http.Flusher).Flush()
		case "/much":
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 64<<10))
			}
		}
		<-r.Context().Done()
		left <- struct{}{}
	}))
	endless := func() io.Reader {
		return io.MultiReader(strings.NewReader("begin"), readerFunc(func(p []byte) (int, error) { return len(p), nil }))
	}
	for _, tc := range []struct {
		path string
		body io.Reader
		stay bool // the body is not closed; the context ends
	}{
		{path: "/silent"}, {path: "/head"}, {path: "/head", stay: true}, {path: "/much"}, {path: "/much", stay: true},
		{path: "/silent", body: endless()}, {path: "/head", body: endless()}, {path: "/much", body: endless(), stay: true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if tc.path == "/silent" {
			go func() { <-arrived; cancel() }()
		}
		res, err := x.ask(ctx, "POST", tc.path, tc.body)
		switch {
		case tc.path == "/silent":
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%+v: %v", tc, err)
			}
		case err != nil:
			t.Errorf("%+v: %v", tc, err)
		case tc.stay:
			cancel()
			if _, err := io.Copy(io.Discard, res.Body); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v: reading on: %v", tc, err)
			}
		default:
			_ = res.Body.Close()
			if _, err := res.Body.Read(make([]byte, 1)); err == nil {
				t.Errorf("%+v: a closed body was read", tc)
			}
		}
		cancel()
		x.ends(ReasonClientReset, tc)
		<-left
	}
	x.empty(0)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A body that fails or differs from its declared length ends the request.
func TestGuestBrokenBody(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }))
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		body   io.Reader
		length int64
		want   error
	}{
		"fails": {io.MultiReader(strings.NewReader("begin"), iotest.ErrReader(broken)), -1, broken},
		"short": {strings.NewReader("begin"), 6, nil},
		"long":  {strings.NewReader("begin"), 4, nil},
	} {
		_, err := x.ask(t.Context(), "POST", "/", io.NopCloser(tc.body), func(r *http.Request, _ *Plan) { r.ContentLength = tc.length })
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		x.ends(ReasonClientReset, name)
	}
	x.empty(0)
}

// The plan's answer to a failure reaches the caller.
func TestGuestFailures(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/late":
			<-r.Context().Done()
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	answer := http.NotFoundHandler()
	x.plan.Fail = func(Outcome) http.Handler { return answer }
	x.plan.Accept = func(int) http.Handler { return answer }
	for path, want := range map[string]Reason{"/reset": ReasonReset, "/redirect": ReasonRejected, "/late": ReasonDeadline, "/none": ReasonNoEndpoint} {
		_, err := x.ask(t.Context(), "GET", path, nil, func(_ *http.Request, p *Plan) {
			switch path {
			case "/late":
				p.Deadline = 10 * time.Millisecond
			case "/none":
				p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint { return nil }}
			}
		})
		if f, ok := errors.AsType[*Failure](err); !ok || f.Reason != want || f.Answer == nil {
			t.Errorf("%s: %v", path, err)
		}
		x.ends(want, path)
	}
	x.empty(0)
}

// A caller that does not read holds at most one window of the body, does not delay others, and
// after its deadline holds little.
func TestGuestReadsSlowly(t *testing.T) {
	const size = 4 << 20
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/much" {
			_, _ = w.Write(make([]byte, size))
		}
	}))
	slow := x.must("GET", "/much", nil)
	late := x.must("GET", "/much", nil, func(_ *http.Request, p *Plan) { p.Deadline = 10 * time.Millisecond })
	x.ends(ReasonDeadline)
	for range 20 {
		_ = x.must("GET", "/", nil).Body.Close()
		<-x.ended
	}
	for _, sh := range x.server.shards {
		if n := sh.e.Count.Queued.Load(); n > 2*256<<10 {
			t.Errorf("%d bytes are held", n)
		}
	}
	if n, err := io.Copy(io.Discard, slow.Body); n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := io.Copy(io.Discard, late.Body); n == 0 || n > hold.Least+4<<10 || err == nil {
		t.Errorf("after its deadline: %d bytes, %v", n, err)
	}
	x.empty(1)
}

// Guests that do not read are treated like HTTP/2 clients that do not read: the largest holder is
// ended when the process holds too much.
func TestGuestsStayWithinBound(t *testing.T) {
	bound := hold.New(2 << 20)
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }),
		func(c *Config) { c.Memory, c.Shards = bound, 1 })
	var guests []*guest
	for range 32 {
		guests = append(guests, x.must("GET", "/", nil).Body.(*guestBody).g)
	}
	if o := <-x.ended; o.Err == nil || !strings.Contains(o.Err.Error(), "free memory") {
		t.Errorf("outcome %+v", o)
	}
	sh := x.server.shards[0]
	sh.lock()
	defer sh.settle()
	if over := bound.Over(); over > 0 {
		t.Errorf("%d bytes above the limit are held", over)
	}
	for _, g := range guests {
		g.Abort(errServerEnded) // ends the others, too: then nothing may be left of any
		if n, _, err := g.Read(make([]byte, 1)); n > 0 {
			t.Fatalf("bytes are held that are not counted, before %v", err)
		}
	}
}

// An upload whose data has not arrived holds no more than one read's buffer.
func TestGuestUploadHoldsLittle(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	room := make(chan int, 1) // the engine may read it after the answer
	_ = x.read(x.must("POST", "/", readerFunc(func(p []byte) (int, error) {
		room <- cap(p)
		return 0, io.EOF
	})))
	check.Same(t, guestChunk, <-room, "bytes held")
	<-x.ended
}

// A drain ends watches cleanly; the end of the server ends everything.
func TestGuestDrain(t *testing.T) { onDrivers(t, testGuestDrain) }

func testGuestDrain(t *testing.T, driver string) {
	x := newHotel(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "event\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	watch := x.must("GET", "/", nil, func(_ *http.Request, p *Plan) { p.LongRunning = true })
	plain := x.must("GET", "/", nil)
	if err := x.server.Shutdown(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	x.reads(watch, "event\n")
	x.ends(ReasonDrain)
	x.server.end()
	if _, err := io.ReadAll(plain.Body); err == nil {
		t.Error("a response outlasted the server")
	}
	<-x.ended
	if _, err := x.ask(t.Context(), "GET", "/", nil); !errors.Is(err, errServerEnded) {
		t.Errorf("after the end: %v", err)
	}
	<-x.ended
}

// Read fails only after Plan.Done has returned, even if another goroutine's turn ends the stream.
func TestGuestHearsAfterDone(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begin")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	begun, read := make(chan struct{}), make(chan error, 1)
	res := x.must("GET", "/", nil, func(_ *http.Request, p *Plan) {
		p.LongRunning = true
		p.Done = func(Outcome) {
			close(begun)
			select {
			case err := <-read:
				t.Errorf("Read returned %v before Done has returned", err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	<-begun
	body, err := io.ReadAll(res.Body)
	read <- err
	if f, ok := errors.AsType[*Failure](err); string(body) != "begin" || !ok || f.Reason != ReasonReset {
		t.Errorf("a response that was cut off: %q, %v", body, err)
	}
}

// A panic for a guest ends its request, once, and no other request.
func TestGuestPanic(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			w.(http.Flusher).Flush()
		}
		if r.URL.Path != "/" {
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "fine")
	}))
	other := x.must("GET", "/hangs", nil)
	for name, change := range map[string]func(*http.Request, *Plan){
		"pick": func(_ *http.Request, p *Plan) {
			p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint { panic("pick") }}
		},
		"remove": func(r *http.Request, p *Plan) {
			r.Header.Set("X-A", "b")
			p.Remove = func(string) bool { panic("remove") }
		},
		"accept": func(_ *http.Request, p *Plan) { p.Accept = func(int) http.Handler { panic("accept") } },
		"fail": func(r *http.Request, p *Plan) {
			r.URL.Path = "/silent"
			p.Deadline, p.Fail = 10*time.Millisecond, func(Outcome) http.Handler { panic("fail") }
		},
	} {
		x.panics++
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := x.ask(ctx, "GET", "/", nil, change); err == nil || ctx.Err() != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		<-x.ended
	}
	x.reads(x.must("GET", "/", nil), "fine")
	<-x.ended
	_ = other.Body.Close()
	x.ends(ReasonClientReset)
	x.empty(0)
}
