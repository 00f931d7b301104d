package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A guest's answer is net/http's (TestModel has the messages), and an upload holds little whose data has not arrived.
func TestGuest(t *testing.T) {
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.Copy(w, r.Body)
	}), nil)
	body, room := strings.NewReader("hello"), 0
	res := s.guest("PUT", "/", readerFunc(func(p []byte) (int, error) {
		room = cap(p)
		return body.Read(p[:1])
	}))
	check.Same(t, true, res.Status == "202 Accepted" && res.ProtoMajor == 2 && res.ContentLength == 5 && res.Request != nil, "got %+v", res)
	s.reads(res, "hello")
	check.Same(t, guestChunk, room, "bytes that an upload holds whose data has not arrived")
	s.ends(engine.ReasonNone)
}

// A guest gets no large trailers: nothing counts them once its stream has ended, and its client may read nothing.
func TestGuestTrailers(t *testing.T) {
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-T", strings.Repeat(r.URL.Path, 4<<10))
		_, _ = io.WriteString(w, "hello")
	}), nil)
	for path, want := range map[string]int{"/": 1, "/abc": 0} {
		res := s.guest("GET", path, nil)
		s.reads(res, "hello")
		check.Same(t, want, len(res.Trailer), "trailers of %d KiB", 4*len(path))
		s.ends(engine.ReasonNone)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// However a guest's request ends early, its caller learns why, with the plan's answer to a failure.
// Its stream at the backend is reset, nothing of it is left, and others' requests go on.
func TestGuestEnds(t *testing.T) {
	broken, unwanted := errors.New("broken"), errors.New("no hints, please")
	b, arrived := newHolding(), make(chan struct{})
	var handlers atomic.Int64
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Add(-1)
		switch r.URL.Path {
		case "/hold", "/":
			b.ServeHTTP(w, r)
			return
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		case "/hint":
			w.Header().Set("Link", "</a>")
			w.WriteHeader(http.StatusEarlyHints)
		case "/hints":
			w.Header().Set("X-Long", strings.Repeat("0123456789", 15_000))
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusEarlyHints)
		case "/upload":
			_, _ = io.Copy(io.Discard, r.Body)
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
	}), func(_ *wire.Head, p *engine.Plan) {
		p.Fail = func(engine.Outcome) http.Handler { return http.NotFoundHandler() }
		p.Accept = func(status int, _ bool) http.Handler {
			if status == http.StatusFound {
				return http.NotFoundHandler()
			}
			return nil
		}
	})
	s.panics = 4
	other := s.begun(s.guest("GET", "/hold", nil))
	trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		if h.Get("Link") != "" {
			return unwanted
		}
		return nil
	}}
	begin := func() io.Reader { return strings.NewReader("begin") }
	endless := func() io.Reader {
		return io.MultiReader(begin(), readerFunc(func(p []byte) (int, error) { return len(p), nil }))
	}
	length := func(n int64) func(*http.Request, *engine.Plan) {
		return func(r *http.Request, _ *engine.Plan) { r.ContentLength = n }
	}
	soon := func(_ *http.Request, p *engine.Plan) { p.Deadline = 10 * time.Millisecond }
	for _, tt := range []struct {
		name, path string
		body       io.Reader
		change     func(*http.Request, *engine.Plan)
		reason     engine.Reason
		want       error // nil: any
	}{
		{"canceled before the head", "/silent", nil, nil, engine.ReasonClientReset, context.Canceled},
		{"canceled while it uploads", "/silent", endless(), nil, engine.ReasonClientReset, context.Canceled},
		{"body closed", "/head", nil, nil, engine.ReasonClientReset, nil},
		{"body closed while it comes", "/much", nil, nil, engine.ReasonClientReset, nil},
		{"body closed while it uploads", "/head", endless(), nil, engine.ReasonClientReset, nil},
		{"canceled, then read", "/head", nil, nil, engine.ReasonClientReset, context.Canceled},
		{"canceled, then much read", "/much", nil, nil, engine.ReasonClientReset, context.Canceled},
		{"canceled, then read while it uploads", "/much", endless(), nil, engine.ReasonClientReset, context.Canceled},
		{"upload fails", "/upload", io.MultiReader(begin(), iotest.ErrReader(broken)), nil, engine.ReasonClientReset, broken},
		{"upload is short", "/upload", begin(), length(6), engine.ReasonClientReset, nil},
		{"upload is long", "/upload", begin(), length(4), engine.ReasonClientReset, nil},
		{"interim head refused", "/hint", nil, nil, engine.ReasonClientReset, unwanted},
		{"interim heads too long together", "/hints", nil, nil, engine.ReasonBadResponse, nil},
		{"reset", "/reset", nil, nil, engine.ReasonReset, nil},
		{"rejected", "/redirect", nil, nil, engine.ReasonRejected, nil},
		{"late", "/late", nil, soon, engine.ReasonDeadline, nil},
		{"no endpoint", "/", nil, func(_ *http.Request, p *engine.Plan) {
			p.Forward.Pick = func(any, []*engine.Endpoint) *engine.Endpoint { return nil }
		}, engine.ReasonNoEndpoint, nil},
		{"panic in Pick", "/", nil, func(_ *http.Request, p *engine.Plan) {
			p.Forward.Pick = func(any, []*engine.Endpoint) *engine.Endpoint { panic(1) }
		}, engine.ReasonAbort, nil},
		{"panic in Remove", "/", nil, func(r *http.Request, p *engine.Plan) {
			r.Header.Set("X-A", "b")
			p.Remove = func(string) bool { panic(1) }
		}, engine.ReasonAbort, nil},
		{"panic in Accept", "/", nil, func(_ *http.Request, p *engine.Plan) { p.Accept = func(int, bool) http.Handler { panic(1) } }, engine.ReasonAbort, nil},
		{"panic in Fail", "/late", nil, func(r *http.Request, p *engine.Plan) {
			soon(r, p)
			p.Fail = func(engine.Outcome) http.Handler { panic(1) }
		}, engine.ReasonDeadline, nil},
	} {
		ctx, cancel := context.WithCancel(httptrace.WithClientTrace(t.Context(), trace))
		if tt.path == "/silent" {
			go func() { <-arrived; cancel() }()
		}
		res, err := s.ask(ctx, "POST", tt.path, tt.body, tt.change)
		if err == nil && tt.want != nil {
			cancel()
			_, err = io.Copy(io.Discard, res.Body)
		} else if err == nil {
			_ = res.Body.Close()
			_, err = res.Body.Read(make([]byte, 1))
		}
		cancel()
		check.Same(t, true, err != nil && (tt.want == nil || errors.Is(err, tt.want)), "%s: %v", tt.name, err)
		f, ok := errors.AsType[*engine.Failure](err)
		unanswered := tt.reason == engine.ReasonClientReset || strings.HasPrefix(tt.name, "panic")
		check.Same(t, true, unanswered || ok && f.Reason == tt.reason && f.Answer != nil, "%s: failure %+v", tt.name, f)
		s.ends(tt.reason, tt.name)
		must.Soon(t, 10*time.Second, tt.name+": only the other request is left", func() bool { return handlers.Load() == 1 && s.left()[0] == 1 })
	}
	close(b.release)
	s.reads(other, "fine")
	s.ends(engine.ReasonNone)
	check.Same(t, [2]int64{}, s.left(), "streams and bytes left")
}

// A caller that does not read holds at most one window of the body, does not delay others, and
// after its deadline holds little.
func TestGuestReadsSlowly(t *testing.T) {
	const size = 4 << 20
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/much" {
			_, _ = w.Write(make([]byte, size))
		}
	}), nil)
	slow := s.guest("GET", "/much", nil)
	var late io.Reader
	for wait := 10 * time.Millisecond; late == nil && wait < time.Minute; wait *= 2 { // on a busy machine nothing has come by then
		res, err := s.ask(t.Context(), "GET", "/much", nil, func(_ *http.Request, p *engine.Plan) { p.Deadline = wait })
		if s.ends(engine.ReasonDeadline); err != nil {
			continue
		}
		defer res.Body.Close()
		if n, _ := res.Body.Read(make([]byte, 1)); n == 1 {
			late = res.Body
		}
	}
	must.Be(t, late != nil, "what came before the deadline cannot be read")
	for range 20 {
		_ = s.guest("GET", "/", nil).Body.Close()
		<-s.ended
	}
	check.Within(t, 0, 2*256<<10, s.left()[1], "bytes held")
	check.Same(t, size, must.Get(io.Copy(io.Discard, slow.Body))(t), "bytes read")
	n, err := io.Copy(io.Discard, late)
	check.Same(t, true, err != nil && n <= hold.Least+4<<10, "little is read after its deadline, and an error: %d bytes, %v", n, err)
	s.ends(engine.ReasonNone)
	check.Same(t, [2]int64{}, s.left(), "streams and bytes left")
}

// Guests that do not read are treated like HTTP/2 clients that do not read: the largest holder is
// ended when the process holds too much.
func TestGuestsStayWithinBound(t *testing.T) {
	bound := hold.New(2 << 20)
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }), nil,
		func(c *Config) { c.Memory, c.Shards = bound, 1 })
	var guests []*guest
	for range 32 {
		guests = append(guests, s.guest("GET", "/", nil).Body.(*guestBody).g)
	}
	o := <-s.ended
	check.Same(t, true, o.Reason == engine.ReasonMemory && o.Err != nil && strings.Contains(o.Err.Error(), "free memory"), "outcome %+v", o)
	sh := s.server.shards[0]
	sh.lock()
	defer sh.settle()
	check.Same(t, 0, bound.Over(), "bytes above the limit that are held")
	for _, g := range guests {
		g.Abort(errServerEnded) // ends the others, too: then nothing may be left of any
		n, _, _ := g.Read(make([]byte, 1))
		check.Same(t, 0, n, "bytes that are held and not counted")
	}
}

// Read fails only after Plan.Done has returned, even if another goroutine's turn ends the stream.
func TestGuestHearsAfterDone(t *testing.T) {
	s := newStand(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begin")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}), nil)
	begun, read := make(chan struct{}), make(chan error, 1)
	res := s.guest("GET", "/", nil, func(_ *http.Request, p *engine.Plan) {
		p.LongRunning = true
		p.Done = func(engine.Outcome) {
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
	f, ok := errors.AsType[*engine.Failure](err)
	check.Same(t, true, string(body) == "begin" && ok && f.Reason == engine.ReasonReset, "a response that was cut off: %q, %v", body, err)
}
