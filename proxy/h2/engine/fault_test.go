package engine

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// Backends are not trusted: whatever they send, the client sees a valid answer or a reset.
func TestBackendMisbehaves(t *testing.T) {
	head := func(b *peer) { b.headers(1, false, ":status=200") }
	long := slices.Repeat([]string{"x-t=" + strings.Repeat("v", 3000)}, 20)
	tests := []struct {
		name string
		send func(b *peer)
		want string // part of what the client sees
		end  bool   // the backend's connection is closed
	}{
		{"data before headers", func(b *peer) { _ = b.fr.WriteData(1, true, []byte("x")) }, ":status=502", false},
		{"no status", func(b *peer) { b.headers(1, true, "x-a=1") }, ":status=502", false},
		{"bad status", func(b *peer) { b.headers(1, true, ":status=2000") }, ":status=502", false},
		{"pseudo-field of requests", func(b *peer) { b.headers(1, true, ":status=200", ":path=/") }, ":status=502", false},
		{"upper case", func(b *peer) { b.headers(1, true, ":status=200", "X-A=1") }, ":status=502", false},
		{"control character", func(b *peer) { b.headers(1, true, ":status=200", "x-a=1\r\nx-b: 2") }, ":status=502", false},
		{"101", func(b *peer) { b.headers(1, false, ":status=101") }, ":status=502", false},
		{"interim that ends", func(b *peer) { b.headers(1, true, ":status=100") }, ":status=502", false},
		{"length without body", func(b *peer) { b.headers(1, true, ":status=200", "content-length=3") }, ":status=502", false},
		{"two lengths", func(b *peer) { b.headers(1, false, ":status=200", "content-length=5", "content-length=6") }, ":status=502", false},
		{"bad length", func(b *peer) { b.headers(1, true, ":status=200", "content-length=+3") }, ":status=502", false},
		{"body too long", func(b *peer) {
			b.headers(1, false, ":status=200", "content-length=3")
			_ = b.fr.WriteData(1, true, []byte("four"))
		}, "RST 1 INTERNAL_ERROR", false},
		{"body too short", func(b *peer) {
			b.headers(1, false, ":status=200", "content-length=30")
			_ = b.fr.WriteData(1, true, []byte("four"))
		}, "RST 1 INTERNAL_ERROR", false},
		{"body too short with trailers", func(b *peer) {
			b.headers(1, false, ":status=200", "content-length=30")
			b.headers(1, true, "x-t=1")
		}, "RST 1 INTERNAL_ERROR", false},
		{"list too large", func(b *peer) { b.headers(1, true, append(long, ":status=200")...) }, ":status=502", false},
		{"trailers too large", func(b *peer) { head(b); b.headers(1, true, long...) }, "RST 1 INTERNAL_ERROR", false},
		{"trailers in upper case", func(b *peer) { head(b); b.headers(1, true, "X-T=1") }, "RST 1 INTERNAL_ERROR", false},
		{"pseudo-field in trailers", func(b *peer) { head(b); b.headers(1, true, ":status=500") }, "RST 1 INTERNAL_ERROR", false},
		{"body of 204", func(b *peer) {
			b.headers(1, false, ":status=204")
			_ = b.fr.WriteData(1, true, []byte("x"))
		}, "RST 1 INTERNAL_ERROR", false},
		{"second head", func(b *peer) { head(b); head(b) }, "RST 1 INTERNAL_ERROR", false},
		{"interims without end", func(b *peer) {
			for range 1000 {
				b.headers(1, false, ":status=103")
			}
		}, ":status=502", false},
		{"head too large", func(b *peer) {
			b.headers(1, true, ":status=200", "x-a="+strings.Repeat("v", 40000))
		}, ":status=502", false},
		{"stream never opened", func(b *peer) { b.headers(99, true, ":status=200") }, ":status=503", true},
		{"even stream", func(b *peer) { b.headers(2, true, ":status=200") }, ":status=503", true},
		{"push", func(b *peer) {
			_ = b.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, ":status=503", true},
		{"endless headers", func(b *peer) {
			_ = b.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
			for range 300 {
				_ = b.fr.WriteContinuation(1, false, make([]byte, 100))
			}
		}, ":status=503", true},
		{"broken table", func(b *peer) {
			_ = b.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true})
		}, ":status=503", true},
		{"window overflow", func(b *peer) { _ = b.fr.WriteWindowUpdate(0, maxWindow) }, ":status=503", true},
		{"stream window overflow", func(b *peer) { _ = b.fr.WriteWindowUpdate(1, maxWindow) }, ":status=502", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, c := newClient(t, func(l *limits) { l.maxHeader = 32 << 10 })
			if test.name == "stream window overflow" {
				c.request(1, "POST", false)
			} else {
				c.get(1)
			}
			b := r.backend(0)
			b.see()
			test.send(b)
			b.flush()
			if strings.Contains(test.name, "too large") {
				b.wantPart("RST 1 ENHANCE_YOUR_CALM")
			} else if strings.Contains(test.name, "trailers in") {
				b.wantPart("RST 1 PROTOCOL_ERROR")
			}
			got := strings.Join(c.see(), "\n")
			if !strings.Contains(got, test.want) || strings.Contains(got, "x-a") {
				t.Errorf("the client sees\n%s\nwant %s", got, test.want)
			}
			check.Same(t, test.end, b.c.closing, "closed")
			r.tick(r.e.lim.drain + time.Second)
			r.clean()
		})
	}
}

func TestRequestValidation(t *testing.T) {
	with := asHead
	bad := map[string][]string{
		"no method":                {":scheme=https", ":authority=a", ":path=/"},
		"no path":                  {":method=GET", ":scheme=https", ":authority=a"},
		"no scheme":                {":method=GET", ":authority=a", ":path=/"},
		"empty path":               {":method=GET", ":scheme=https", ":authority=a", ":path="},
		"relative path":            {":method=GET", ":scheme=https", ":authority=a", ":path=x"},
		"space in path":            {":method=GET", ":scheme=https", ":authority=a", ":path=/a b"},
		"star":                     {":method=GET", ":scheme=https", ":authority=a", ":path=*"},
		"bad method":               {":method=G T", ":scheme=https", ":authority=a", ":path=/"},
		"two methods":              {":method=GET", ":method=GET", ":scheme=https", ":authority=a", ":path=/"},
		"late pseudo-field":        with("x-a=1", ":path=/b"),
		"status":                   with(":status=200"),
		"protocol":                 {":method=CONNECT", ":protocol=websocket", ":scheme=https", ":authority=a", ":path=/"},
		"connect with a path":      {":method=CONNECT", ":scheme=https", ":authority=a", ":path=/"},
		"upper case":               with("X-A=1"),
		"space in name":            with("x a=1"),
		"empty name":               with("=1"),
		"line break":               with("x-a=1\nb"),
		"connection":               with("connection=close"),
		"upgrade":                  with("upgrade=websocket"),
		"transfer-encoding":        with("transfer-encoding=chunked"),
		"keep-alive":               with("keep-alive=1"),
		"te":                       with("te=gzip"),
		"other host":               with("host=b"),
		"two hosts":                with("host=a", "host=b"),
		"length without body":      with("content-length=3"),
		"two lengths":              with("content-length=0", "content-length=1"),
		"list of lengths":          with("content-length=0,0"),
		"signed length":            with("content-length=-0"),
		"authority with a newline": {":method=GET", ":scheme=https", ":authority=a\n", ":path=/"},
	}
	for name, fields := range bad {
		r, c := newClient(t)
		c.send(1, true, fields...)
		if got := strings.Join(c.see(), "|"); got != "RST 1 PROTOCOL_ERROR" || len(r.backends) != 0 {
			t.Errorf("%s: the client sees %s", name, got)
		}
		c.get(3)
		check.Same(t, 1, len(r.backends), "%s: connections for the next request", name)
	}
	good := map[string][]string{
		okHead + " te=trailers":      with("te=trailers"),
		okHead:                       with("host=A"),
		okHead + " content-length=0": with("content-length=0", "content-length=0"),
		okHead + " x-a=b":            with("x-a= b\t"),
		":method=OPTIONS :scheme=https :authority=a :path=*": {":method=OPTIONS", ":scheme=https", ":authority=a", ":path=*"},
		":method=GET :scheme=https :authority=h :path=/":     {":method=GET", ":scheme=https", ":path=/", "host=h"},
	}
	for want, fields := range good {
		r, c := newClient(t)
		c.send(1, true, fields...)
		if got := strings.Join(r.backend(0).see(), "|"); !strings.Contains(got, "HEADERS 1 "+want+" END") {
			t.Errorf("%s: the backend sees %s", want, got)
		}
	}
	_, c := newClient(t)
	c.send(1, true, ":method=CONNECT", ":authority=a")
	c.want("HEADERS 1 :status=405 content-length=0 END")
}

func TestRequestLengthMismatch(t *testing.T) {
	for name, send := range map[string]func(c *peer){
		"long":     func(c *peer) { c.data(1, "four", false) },
		"short":    func(c *peer) { c.data(1, "tw", true) },
		"trailers": func(c *peer) { c.data(1, "tw", false); c.headers(1, true, "x-t=1"); c.flush() },
	} {
		r, c := newClient(t)
		c.request(1, "POST", false, "content-length=3")
		b := r.backend(0)
		b.see()
		send(c)
		check.Same(t, "RST 1 PROTOCOL_ERROR", strings.Join(c.see(), "|"), "%s: the client sees", name)
		if got := strings.Join(b.see(), "|"); !strings.HasSuffix(got, "RST 1 CANCEL") || strings.Contains(got, "END") {
			t.Errorf("%s: the backend sees %s", name, got)
		}
		r.clean()
	}
}

func TestDataAfterTheEnd(t *testing.T) {
	r, c, b := asked(t)
	b.respond(1, "done")
	c.see()
	c.data(1, "late", true)
	c.want("RST 1 STREAM_CLOSED")
	r.clean()
}

// A request is sent again with all that has come of its body.
func TestRetry(t *testing.T) {
	r := newRig(t)
	r.plan.Retries, r.named = 2, true
	other := r.endpoint("other")
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(r.ep, other), true }
	c := r.client()
	c.request(1, "POST", false, "x-a=1")
	c.data(1, "first", false)
	b := r.backend(0)
	b.want("SETTINGS", "WINDOW 0 1073676289", "HEADERS 1 :method=POST :scheme=https :authority=ep :path=/ x-a=1", `DATA 1 "first"`, "SETTINGS ACK")
	b.goAway(0, http2.ErrCodeNo)
	b2 := r.backend(1)
	b2.want("SETTINGS", "WINDOW 0 1073676289", "HEADERS 1 :method=POST :scheme=https :authority=other :path=/ x-a=1", `DATA 1 "first"`, "SETTINGS ACK")
	c.data(1, "second", true)
	b2.want(`DATA 1 "second" END`)
	b2.respond(1, "ok")
	c.want("HEADERS 1 :status=200", `DATA 1 "ok" END`)
	if o := r.outcomes[0]; o.Retries != 1 || o.Endpoint != other || o.Reason != ReasonNone || o.Received != 11 {
		t.Errorf("outcome %+v", o)
	}
	r.clean()
}

// A request is sent again, with its whole body, if no backend has processed it, or if it may be
// processed twice. A backend that closes a connection before it has acknowledged our SETTINGS has
// not read the requests after them: so much is known of safe methods, also of a watch.
func TestTries(t *testing.T) {
	reset := func(_ *rig, b *peer) { b.rst(1, http2.ErrCodeInternal) }
	refused := func(_ *rig, b *peer) { b.rst(1, http2.ErrCodeRefusedStream) }
	lost := func(r *rig, b *peer) { r.lose(b, errRefused) }
	heard := func(r *rig, b *peer) {
		_ = b.fr.WriteSettingsAck()
		b.flush()
		r.lose(b, errRefused)
	}
	no := func() bool { return false }
	for _, tt := range []struct {
		name, method string
		plan         Plan // with Retries: 5, of which two are used
		body         int
		event        func(r *rig, b *peer)
		want         int
	}{
		{"reset, may be repeated", "POST", Plan{Again: true}, 0, reset, 3},
		{"reset", "POST", Plan{}, 0, reset, 1},
		{"lost, may be repeated", "POST", Plan{Again: true}, 0, heard, 3},
		{"lost", "POST", Plan{}, 0, lost, 1},
		{"lost GET", "GET", Plan{}, 0, lost, 3},
		{"lost HEAD", "HEAD", Plan{}, 0, lost, 3},
		{"lost OPTIONS", "OPTIONS", Plan{}, 0, lost, 1},
		{"lost DELETE", "DELETE", Plan{}, 0, lost, 1},
		{"lost watch", "GET", Plan{LongRunning: true}, 0, lost, 3},
		{"lost watch that may have been heard", "GET", Plan{LongRunning: true}, 0, heard, 1},
		{"no budget", "POST", Plan{Again: true, Budget: no}, 0, refused, 1},
		{"small body", "POST", Plan{}, 1000, refused, 3},
		{"large body", "POST", Plan{}, 400_000, refused, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.plan = tt.plan
			r.plan.Retries = 5
			second, third := r.endpoint("second"), r.endpoint("third")
			r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(r.ep, second, third), true }
			c := r.client()
			c.request(1, tt.method, tt.body == 0)
			for i := 0; i < len(r.backends); i++ {
				b := r.backend(i)
				b.grow(0, 1<<20)
				b.grow(1, 1<<20)
				for left := tt.body; left > 0 && i == 0; left -= 1000 {
					c.data(1, strings.Repeat("x", 1000), false)
				}
				check.Same(t, tt.body, b.received(), "try %d: bytes", i)
				tt.event(r, b)
			}
			c.wantPart(":status=50")
			c.rst(1, http2.ErrCodeCancel)
			check.Same(t, tt.want, r.outcomes[0].Retries+1, "tries")
			r.clean()
		})
	}
}

// received returns the number of bytes of bodies that the peer sees.
func (p *peer) received() (sum int) {
	for _, f := range p.see() {
		n := 0
		if _, err := fmt.Sscanf(f, "DATA 1 (%d)", &n); err == nil {
			sum += n
		}
	}
	return sum
}

// unless returns a plan for the rig's endpoint, or for other after the first is ejected.
func (r *rig) unless(ejected *bool, other *Endpoint) Plan {
	p := r.forward()
	p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint {
		r.inFlight++
		if *ejected {
			return other
		}
		return r.ep
	}}
	return p
}

func TestEject(t *testing.T) {
	r := newRig(t)
	r.plan.Retries, r.plan.Again = 2, true
	other := r.endpoint("other")
	ejected := false
	r.decide = func(h *wire.Head, _ func(Plan)) (Plan, bool) {
		p := r.unless(&ejected, other)
		p.Again = h.Method == "GET"
		return p, true
	}
	c := r.client()
	c.get(1)
	c.request(3, "POST", true)
	c.get(5)
	b := r.backend(0)
	b.see()
	b.headers(5, false, ":status=200") // this request stays, because its response has begun
	b.flush()
	ejected = true
	r.eject(r.ep)
	b.want("RST 1 CANCEL")
	b2 := r.backend(1)
	b2.want("SETTINGS", "WINDOW 0 1073676289", "HEADERS 1 :method=GET :scheme=https :authority=a :path=/ END", "SETTINGS ACK")
	b2.respond(1, "ok")
	b.respond(3, "made")
	b.data(5, "rest", true)
	c.want("HEADERS 5 :status=200", "HEADERS 1 :status=200", `DATA 1 "ok" END`, "HEADERS 3 :status=200", `DATA 3 "made" END`, `DATA 5 "rest" END`)
	if o := r.outcomes[0]; o.Retries != 1 || o.Endpoint != other || o.Reason != ReasonNone {
		t.Errorf("outcome %+v", o)
	}
	r.clean()
}

// A request that waits for a connection to an endpoint moves when that is ejected, whatever its
// method, and uses up no retry.
func TestEjectWhileDialling(t *testing.T) {
	r := newRig(t)
	other := r.endpoint("other")
	ejected := false
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.unless(&ejected, other), true }
	r.heldDial = true
	c := r.client()
	c.request(1, "POST", true)
	hung := r.held[0]
	r.heldDial, ejected = false, true
	r.eject(r.ep)
	b := r.backend(0)
	b.respond(1, "ok")
	c.want("HEADERS 1 :status=200", `DATA 1 "ok" END`)
	if o := r.outcomes[0]; o.Retries != 0 || o.Endpoint != other {
		t.Errorf("outcome %+v", o)
	}
	hung.dialled(errors.New("timed out"))
	r.run()
	r.clean()
}

func TestDialFails(t *testing.T) {
	r := newRig(t)
	r.refuse = errors.New("connection refused")
	r.plan.Retries = 2
	r.plan.Budget = func() bool { return false } // a failed dial is not charged to it
	var outcome Outcome
	r.plan.Fail = func(o Outcome) http.Handler { outcome = o; return http.NotFoundHandler() }
	c := r.client()
	c.request(1, "POST", true)
	if len(r.locals) != 1 || outcome.Reason != ReasonDial || outcome.Retries != 2 || r.failed != 3 || !errors.Is(outcome.Err, r.refuse) {
		t.Errorf("%d handlers, outcome %+v, %d signals", len(r.locals), outcome, r.failed)
	}
	if l := r.locals[0]; l.head.Method != "POST" || l.head.Target() != "/" || l.head.Authority != "a" {
		t.Errorf("the handler gets %+v", l.head)
	}
	r.locals[0].End(503, okFields(), nil)
	r.run()
	c.want("HEADERS 1 :status=503 END")
	r.clean()

	r.plan.Fail = nil
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(), true }
	c.get(3)
	c.want("HEADERS 3 :status=503 content-length=0 END")
	r.ended(1, ReasonNoEndpoint)
	r.clean()
}

func okFields() []hpack.HeaderField { return []hpack.HeaderField{field(":status", "503")} }
