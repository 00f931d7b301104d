package engine

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

func TestRequestAndResponse(t *testing.T) {
	r := newRig(t)
	r.plan.Remove = func(name string) bool { return name == "x-remote-user" }
	r.plan.Set = append(r.plan.Set, field("x-remote-group", "devs"))
	c := r.client()
	c.get(1, "x-remote-user=eve", "authorization=Bearer t", "accept=a/b", "x-remote-group=system:masters")
	b := r.backend(0)
	b.want("SETTINGS", "WINDOW 0 1073676289", "HEADERS 1 "+okHead+" !authorization=Bearer t accept=a/b x-remote-group=devs END", "SETTINGS ACK")
	b.respond(1, "hello")
	c.want("HEADERS 1 :status=200", `DATA 1 "hello" END`)
	if len(r.outcomes) != 1 || r.outcomes[0].Status != 200 || r.outcomes[0].Sent != 5 || r.outcomes[0].Reason != ReasonNone {
		t.Errorf("outcomes %+v", r.outcomes)
	}
	r.clean()
}

// Input has the same effect in single bytes, in any pieces of frames, and all at once.
func TestInputInAnyPieces(t *testing.T) {
	r, c := newClient(t)
	c.headers(1, false, ":method=POST", ":scheme=https", ":authority=a", ":path=/")
	for _, b := range []byte("hello") {
		_ = c.fr.WriteDataPadded(1, false, []byte{b}, make([]byte, 3))
	}
	_ = c.fr.WriteData(1, true, nil)
	all := c.to.Bytes()
	for i := range all {
		r.e.Feed(c.c, all[i:i+1])
		r.run()
	}
	r.backend(0).wantPart(`"h"`, `"e"`, `"l"`, `"o"`, "END")
}

// Plan.Accept may answer in place of the backend, and Plan.GoAway sends the client elsewhere.
func TestAcceptAndGoAway(t *testing.T) {
	r := newRig(t)
	r.plan.GoAway = true
	r.plan.Accept = func(status int) http.Handler {
		if status < 300 {
			return nil
		}
		return http.NotFoundHandler()
	}
	c := r.client()
	c.gets(1, 3)
	c.want(fmt.Sprintf("GOAWAY %d NO_ERROR", topStreamID), "PING "+drainPing)
	b := r.backend(0)
	b.respond(1, "fine")
	c.want("HEADERS 1 :status=200", `DATA 1 "fine" END`)
	b.see()
	b.send(3, false, ":status=302", "location=/elsewhere")
	b.want("RST 3 CANCEL")
	r.locals[0].End(http.StatusBadGateway, okFields(), nil)
	r.run()
	c.want("HEADERS 3 :status=503 END")
	r.ended(1, ReasonRejected)
	c.drainPong()
	c.wantClosed(true, "the client's connection is kept")
	r.clean()
}

func TestInterimAndTrailersBothWays(t *testing.T) {
	r := newRig(t)
	r.plan.Remove = func(name string) bool { return strings.HasPrefix(name, "x-remote-") }
	c := r.client()
	c.request(1, "POST", false, "content-length=2")
	b := r.backend(0)
	b.see()
	c.data(1, "up", false)
	c.send(1, true, "x-sum=1", "x-remote-user=system:admin", "authorization=x")
	b.want(`DATA 1 "up"`, "HEADERS 1 x-sum=1 END") // trailers must not carry an identity
	b.headers(1, false, ":status=103", "link=l", "content-length=3")
	b.headers(1, false, ":status=200", "content-length=4", "connection=x", "keep-alive=1", "transfer-encoding=chunked", "upgrade=h2c")
	_ = b.fr.WriteData(1, false, []byte("down"))
	b.send(1, true, "x-sum=2")
	c.want("HEADERS 1 :status=103 link=l", "HEADERS 1 :status=200 content-length=4", `DATA 1 "down"`, "HEADERS 1 x-sum=2 END")
	c.request(3, "HEAD", true) // whose answer declares the length of content that it does not have
	b.headers(3, false, ":status=200", "content-length=5")
	b.send(3, true, "x-t=1")
	c.want("HEADERS 3 :status=200 content-length=5", "HEADERS 3 x-t=1 END")
	r.clean()
}

func TestEndOnlyAfterPendingData(t *testing.T) {
	r, c := newClient(t)
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	c.get(1)
	b := r.backend(0)
	b.headers(1, false, ":status=200")
	_ = b.fr.WriteData(1, false, []byte("hello"))
	b.send(1, true, "x-t=1")
	c.want("SETTINGS ACK", "HEADERS 1 :status=200", `DATA 1 "hel"`)
	c.grow(1, 1)
	c.want(`DATA 1 "l"`)
	check.Same(t, 0, c.c.ready.n, "streams that get a turn without window")
	c.window(0) // below zero by what was sent
	c.want("SETTINGS ACK")
	c.grow(1, 3)
	c.want()
	c.window(1)
	c.want("SETTINGS ACK", `DATA 1 "o"`, "HEADERS 1 x-t=1 END")
	r.clean()
}

// A slow reader's body holds at most one window, and does not delay other streams of the backend's
// connection.
func TestSlowReaderHoldsOneWindow(t *testing.T) {
	r, c := newClient(t)
	c.get(1)
	c.get(3)
	b := r.backend(0)
	b.headers(1, false, ":status=200")
	b.headers(3, false, ":status=200")
	chunk := strings.Repeat("x", 16384)
	sent := 0
	for sent < int(r.e.lim.streamWindow) {
		b.data(1, chunk, false)
		sent += len(chunk)
	}
	c.see()
	for _, f := range b.see() {
		if strings.HasPrefix(f, "WINDOW 1") {
			t.Errorf("credit although the client reads nothing: %s", f)
		}
	}
	if q := c.c.streams[1].half[down].q.size; q != sent-defaultWindow {
		t.Errorf("%d bytes are queued, want %d", q, sent-defaultWindow)
	}
	// The client gives back the connection's window, but not the stream's: the other stream
	// continues.
	_ = c.fr.WriteWindowUpdate(0, 1<<20)
	b.data(3, "y", true)
	c.flush()
	c.want(`DATA 3 "y" END`)
	b.data(1, "z", false) // exceeds the window
	if got := b.see(); len(got) != 1 || got[0] != "RST 1 FLOW_CONTROL_ERROR" {
		t.Errorf("window exceeded: %q", got)
	}
	c.want("RST 1 INTERNAL_ERROR")
	r.clean()
}

// A client whose socket is full makes us hold no more than its windows.
func TestFullSocketStopsData(t *testing.T) {
	r, c := newClient(t)
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	_ = c.fr.WriteWindowUpdate(0, 1<<30)
	c.get(1)
	c.silent = true
	b := r.backend(0)
	b.headers(1, false, ":status=200")
	for range 16 {
		b.data(1, strings.Repeat("x", 16384), false)
	}
	if n := len(c.c.out); n > r.e.lim.writeLimit+1024 {
		t.Errorf("%d bytes of output", n)
	}
	c.silent = false
	c.take()
	r.run()
	total := 0
	for _, f := range c.see() {
		total += strings.Count(f, "DATA")
	}
	if s := c.c.streams[1]; total == 0 || s.half[down].sent != 16*16384 {
		t.Errorf("%d bytes sent once the socket took them", s.half[down].sent)
	}
}

// Windows are credited in large steps, not with a WINDOW_UPDATE for each DATA frame.
func TestWindowUpdatesAreBatched(t *testing.T) {
	_, c, b := posted(t)
	_ = b.fr.WriteWindowUpdate(0, 1<<30)
	b.grow(1, 1<<30)
	n := 0
	for range 1000 {
		c.data(1, strings.Repeat("x", 1000), false)
		for _, f := range c.see() {
			if strings.HasPrefix(f, "WINDOW") {
				n++
			}
		}
	}
	if n == 0 || n > 12 {
		t.Errorf("%d window updates for 1 MB", n)
	}
}

// DATA of ended streams uses up the connection's window, too, and must be credited (RFC 9113 §5.2,
// §6.9).
func TestCreditOfDeadStreams(t *testing.T) {
	r, c, b := posted(t)
	b.see()
	b.rst(1, http2.ErrCodeInternal)
	if len(r.e.conns[0].streams) == 0 {
		t.Fatal("the upload is not drained")
	}
	c.see()
	c.rst(1, http2.ErrCodeCancel)
	back := 0
	for range 100 {
		c.data(1, strings.Repeat("x", 16000), false)
		for _, f := range c.see() {
			if strings.HasPrefix(f, "WINDOW 0 ") {
				back++
			}
			if strings.HasPrefix(f, "GOAWAY") {
				t.Fatal(f)
			}
		}
	}
	if back == 0 {
		t.Error("no credit for 1.6 MB on an ended stream")
	}
	r.clean()
}

// The field block of a refused stream changes the table that later blocks use.
func TestRefusedStreamsAreDecoded(t *testing.T) {
	r, c := newClient(t, func(l *limits) { l.maxStreams = 1 })
	c.get(1, "x-a=1")
	c.get(3, "x-b=2") // refused, but x-b enters the table
	c.want("RST 3 REFUSED_STREAM")
	b := r.backend(0)
	b.see()
	b.respond(1, "")
	c.see()
	c.get(5, "x-b=2")
	b.want("HEADERS 3 " + okHead + " x-b=2 END")
}

// curl shows an error instead of the response if RST_STREAM comes with it. So the upload is
// drained, and reset only after a while.
func TestEarlyResponseDrainsUpload(t *testing.T) {
	for _, reset := range []bool{false, true} {
		r, c, b := posted(t)
		b.see()
		b.respond(1, "no")
		if reset {
			b.rst(1, http2.ErrCodeNo)
		}
		c.want("HEADERS 1 :status=200", `DATA 1 "no" END`)
		c.data(1, strings.Repeat("x", 16000), false)
		if got := b.see(); reset != (len(got) == 0) {
			t.Errorf("reset %v: the backend sees %q", reset, got)
		}
		r.tick(r.e.lim.drain / 2)
		c.want()
		r.tick(r.e.lim.drain)
		c.want("RST 1 NO_ERROR")
		r.clean()
		if r.outcomes[0].Reason != ReasonNone || r.outcomes[0].Status != 200 {
			t.Errorf("outcome %+v", r.outcomes[0])
		}
		// Late trailers must not end the connection.
		c.send(1, true, "x-late=1")
		c.want()
	}
}

func TestResetFromClientReachesBackend(t *testing.T) {
	r, c := newClient(t)
	r.tick(time.Second)
	c.get(1)
	b := r.backend(0)
	b.see()
	c.rst(1, http2.ErrCodeCancel)
	b.want("RST 1 CANCEL")
	r.ended(0, ReasonClientReset)
	if wait := r.outcomes[0].Wait; wait != 0 {
		t.Errorf("a response came after %v", wait)
	}
	b.respond(1, "late") // crosses the reset, and is dropped
	c.want()
	r.clean()
}

func TestResetFromBackendReachesClient(t *testing.T) {
	r, c := newClient(t)
	var b *peer
	for i, code := range []http2.ErrCode{http2.ErrCodeInternal, http2.ErrCodeProtocol, http2.ErrCodeCancel, http2.ErrCodeNo} {
		id := uint32(2*i + 1)
		c.get(id)
		b = r.backend(0)
		b.headers(id, false, ":status=200")
		b.data(id, "x", false)
		c.see()
		b.rst(id, code)
		want := http2.ErrCodeInternal
		if code == http2.ErrCodeCancel {
			want = code
		}
		c.want("RST " + string('0'+rune(id)) + " " + want.String())
	}
	r.clean()
}

func TestPaddingAndPrioritiesAreIgnored(t *testing.T) {
	r, c := newClient(t)
	block := c.encode(":method=POST", ":scheme=https", ":authority=a", ":path=/")
	_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, PadLength: 200,
		Priority: http2.PriorityParam{StreamDep: 7, Weight: 3, Exclusive: true}})
	_ = c.fr.WritePriority(1, http2.PriorityParam{StreamDep: 9})
	_ = c.fr.WriteDataPadded(1, true, []byte("x"), make([]byte, 255))
	c.flush()
	r.backend(0).wantPart("HEADERS 1 :method=POST", `DATA 1 "x" END`)
}

func TestContinuation(t *testing.T) {
	r, c := newClient(t)
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1 << 20})
	long := strings.Repeat("v", 50000)
	c.continued(1, c.encode(asHead("x-long="+long)...), 1000)
	b := r.backend(0)
	b.wantPart("x-long=" + long + " END")
	b.send(1, true, ":status=200", "x-long="+long[:16000])
	c.wantPart("x-long=" + long[:16000])
}

// Header lists that are too long are answered with 431, and other streams continue. A few HPACK
// bombs end the connection.
func TestHeaderListLimit(t *testing.T) {
	r, c := newClient(t, func(l *limits) { l.maxHeader = 4096 })
	c.get(1, "x-a="+strings.Repeat("v", 3000), "x-b="+strings.Repeat("w", 3000))
	c.want("HEADERS 1 :status=431 content-length=0 END")
	c.get(3)
	r.backend(0).respond(1, "ok")
	c.want("HEADERS 3 :status=200", `DATA 3 "ok" END`)
	c.request(101, "POST", false)
	c.send(101, true, "x-a="+strings.Repeat("v", 3000), "x-b="+strings.Repeat("w", 3000))
	c.wantPart("RST 101 ENHANCE_YOUR_CALM")
	r.clean()
	c.get(103, "x-bomb="+strings.Repeat("v", 3000)) // enters the table
	bomb := make([]byte, 4000)
	for i := range bomb {
		bomb[i] = 0x80 | 62 // 3 KiB each
	}
	n := uint32(0)
	for ; n < 1000 && !c.c.closing; n++ {
		_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 105 + 2*n, BlockFragment: bomb, EndStream: true, EndHeaders: true})
		c.flush()
	}
	if n > 10 {
		t.Errorf("%d bombs of 12 MB were decoded", n)
	}
}

// A head that its backend would not accept is not sent, and its outcome has the error.
func TestHeadForALesserBackend(t *testing.T) {
	r, c, b := asked(t)
	_ = b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1000})
	b.flush()
	b.see()
	c.get(3, "x-a="+strings.Repeat("v", 1000))
	b.want()
	if len(r.outcomes) != 1 || r.outcomes[0].Reason != ReasonTooLarge || r.outcomes[0].Err == nil {
		t.Errorf("outcomes %+v", r.outcomes)
	}
}

// 100 Continue is sent at most once, and not if the client has sent part of the body.
func TestContinue(t *testing.T) {
	r := newRig(t)
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return Plan{Serve: http.NotFoundHandler()}, true }
	c := r.client()
	c.request(1, "POST", false)
	if !r.locals[0].Continue() {
		t.Error("100 Continue was not sent")
	}
	r.run()
	c.want("HEADERS 1 :status=100")
	c.data(1, "x", false)
	if r.locals[0].Continue() {
		t.Error("100 Continue was sent to a client that does not wait for it")
	}
	r.run()
	c.want()
}

func TestParkedStream(t *testing.T) {
	r := newRig(t)
	var resume func(Plan)
	r.decide = func(h *wire.Head, f func(Plan)) (Plan, bool) {
		if h.Path == "/" && resume == nil {
			resume = f
			return Plan{}, false
		}
		return r.forward(r.ep), true
	}
	r.plan.Remove = func(name string) bool { return name == "x-strip" }
	c := r.client()
	c.request(1, "POST", false, "x-a=1", "x-strip=1")
	c.data(1, "body", false)
	c.send(1, true, "x-t=1", "x-strip=2", "x-remote-user=root")
	c.get(3, "x-a=3") // does not wait
	b := r.backend(0)
	if got := strings.Join(b.see(), "|"); !strings.Contains(got, "HEADERS 1 "+okHead+" x-a=3 END") || strings.Contains(got, "POST") {
		t.Fatalf("the backend sees %s", got)
	}
	resume(r.forward(r.ep))
	b.want("HEADERS 3 :method=POST :scheme=https :authority=a :path=/ x-a=1", `DATA 3 "body"`, "HEADERS 3 x-t=1 END")
	b.respond(1, "")
	b.respond(3, "")
	r.clean()

	// For a plan that comes too late, only Done is called.
	resume = nil
	c.request(5, "POST", false)
	c.upload(5, 60<<10)
	r.tick(2 * time.Second)
	c.rst(5, http2.ErrCodeCancel)
	r.tick(time.Second)
	n := len(r.outcomes)
	resume(r.forward(r.ep))
	if len(r.outcomes) != n+1 || r.outcomes[n].Reason != ReasonClientReset || r.outcomes[n].Duration != 2*time.Second {
		t.Errorf("outcomes %+v", r.outcomes[n:])
	}
	resume(r.forward(r.ep)) // a second call is harmless
	r.clean()
}
