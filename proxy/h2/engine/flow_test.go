package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// The silence of a peer is detected while a connection finishes, after its watches were ended.
func TestSilenceIsFoundAfterCut(t *testing.T) {
	t.Run("retired backend", func(t *testing.T) {
		r, c, b := asked(t)
		b.see()
		r.e.Retire(r.ep, time.Second)
		r.tick(2 * time.Second)
		b.silent = true
		r.tick(2 * defaultPing)
		b.wantClosed(true, "a silent backend is kept after its watches' time")
		c.wantPart(":status=503")
	})
	t.Run("client of a server that drains", func(t *testing.T) {
		r, c := newClient(t)
		c.get(1)
		r.e.Drain(time.Second)
		r.tick(2 * time.Second)
		c.see()
		for range int(2 * (r.e.lim.ping + r.e.lim.pong) / time.Second) {
			r.tick(time.Second)
			_ = r.backend(0).fr.WritePing(true, [8]byte{})
			r.backend(0).flush()
		}
		if !slices.Contains(c.see(), "PING fairlead") || !c.c.closing {
			t.Errorf("a silent client's connection is kept after the drain's grace")
		}
	})
}

// A body is credited once, even if a retry sends it again.
func TestCreditOnceThroughRetries(t *testing.T) {
	r := newRig(t)
	r.plan.Retries = 2
	second, third := r.endpoint("second"), r.endpoint("third")
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(r.ep, second, third), true }
	c := r.client()
	c.request(1, "POST", false)
	const body = 200_000
	c.upload(1, body)
	for i := range 3 {
		b := r.backend(i)
		b.grow(0, body)
		b.grow(1, body)
		if u := &c.c.streams[1].half[up]; u.recv+u.credit > r.e.lim.streamWindow {
			t.Fatalf("try %d: the client may send %d bytes, and %d more are credited; the bound is %d", i, u.recv, u.credit, r.e.lim.streamWindow)
		}
		if i < 2 {
			b.rst(1, http2.ErrCodeRefusedStream)
		}
	}
	if u := &c.c.streams[1].half[up]; u.recv+u.credit != r.e.lim.streamWindow {
		t.Errorf("all was passed on, and the window is %d of %d", u.recv+u.credit, r.e.lim.streamWindow)
	}
	c.data(1, "", true)
	r.backend(2).respond(1, "ok")
	r.clean()
}

// Go's client resets the rest of an upload after the answer. That is not a cancellation.
func TestResetAfterWholeAnswer(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeNo, http2.ErrCodeCancel} {
		r, c := newClient(t)
		n := uint32(0)
		for ; n < 2000 && !c.c.closing; n++ { // four times as many as a connection may cancel
			id := 1 + 2*n
			c.request(id, "POST", false)
			b := r.backend(0)
			b.respond(id, "no")
			c.see()
			c.rst(id, code)
			if got := b.see(); got[len(got)-1] != "RST "+strings.Fields(got[len(got)-1])[1]+" CANCEL" {
				t.Fatalf("the backend sees %q", got)
			}
		}
		if c.c.closing {
			t.Errorf("the connection was closed after %d answers, reset with %v", n, code)
		}
		for _, o := range r.outcomes {
			if o.Reason != ReasonNone || o.Status != 200 {
				t.Fatalf("outcome %+v", o)
			}
		}
		check.Same(t, 0, r.e.Count.Resets[resetByClient].Load(), "resets counted as cancellations by the client")
		r.clean()
	}
}

// Uploads to a backend that does not read do not delay other requests on the client's connection.
func TestUploadsDoNotBlockEachOther(t *testing.T) {
	r, c := newClient(t)
	stuck := r.ep
	for id := uint32(1); id <= 15; id += 2 {
		c.request(id, "POST", false)
		c.upload(id, int(r.e.lim.streamWindow))
	}
	r.ep = r.endpoint("healthy")
	c.request(17, "POST", false)
	if c.c.recv < minMaxFrame {
		t.Fatalf("the client may send only %d bytes more on its connection", c.c.recv)
	}
	c.data(17, "hello", true)
	b := r.backend(1)
	b.wantPart(`DATA 1 "hello" END`)
	b.respond(1, "hi")
	c.wantPart(`DATA 17 "hi" END`)
	r.e.Retire(stuck, 0)
}

// The rest of an answer that has ended can be read, and then its error.
func TestNoMoreOfAGuest(t *testing.T) {
	g := Guest{err: errRefused, rest: []byte("ab")}
	for _, want := range []string{"1 true <nil>", "1 false <nil>", "0 false connection refused"} {
		n, more, err := g.Read(make([]byte, 1))
		check.Same(t, want, fmt.Sprint(n, more, err), "read")
	}
	g.rest = []byte("ab")
	g.Leave(errRefused)
	if n, more, err := g.Read(make([]byte, 1)); n > 0 || more || !errors.Is(err, errRefused) {
		t.Errorf("read %d, %v, %v after Leave", n, more, err)
	}
}

// Padding uses up window and is credited at once; otherwise a padded upload would stall.
func TestPaddingIsCredited(t *testing.T) {
	r, c, b := posted(t)
	window, pad := r.e.lim.streamWindow, make([]byte, 255)
	for sent := int32(0); sent < 2*window; sent += 257 { // with the octet of the padding's length
		_ = c.fr.WriteDataPadded(1, false, []byte("x"), pad)
		c.flush()
		if c.c.streams[1] == nil {
			t.Fatalf("after %d bytes: %q", sent, c.see())
		}
	}
	if u := &c.c.streams[1].half[up]; u.recv+u.credit != window {
		t.Errorf("all was passed on, and the window is %d of %d", u.recv+u.credit, window)
	}
	c.data(1, "", true)
	b.respond(1, "ok")
	r.clean()
}

// Enough of an unwanted upload is read that the client sees the answer, and no more.
func TestUnwantedUploadIsBounded(t *testing.T) {
	r, c, b := posted(t)
	b.respond(1, "no")
	b.rst(1, http2.ErrCodeNo)
	c.want("HEADERS 1 :status=200", `DATA 1 "no" END`)
	full, sent := strings.Repeat("x", minMaxFrame), 0
	for ended := false; !ended; sent += len(full) {
		if sent > 2*maxDrained {
			t.Fatalf("%d bytes are read", sent)
		}
		c.data(1, full, false)
		ended = slices.Contains(c.see(), "RST 1 NO_ERROR")
	}
	if sent < maxDrained {
		t.Errorf("the upload was reset after %d bytes", sent)
	}
	r.clean()
}

// If a backend does not read one upload, and that has used up the connection's window, later
// requests use another connection, until the window opens.
func TestChokedConnection(t *testing.T) {
	r := newRig(t)
	p, other := r.client(), r.client()
	p.request(1, "POST", false)
	b := r.backend(0)
	p.upload(1, defaultWindow+1)
	post := func(id uint32) {
		other.request(id, "POST", false)
		other.data(id, "hello", true)
	}
	for range int(chokeTime/TickEvery) + 1 {
		b.fr.WritePing(true, [8]byte{}) // it is alive
		b.flush()
		r.tick(TickEvery)
	}
	b.see()
	post(1)
	r.backend(1).wantPart(`DATA 1 "hello" END`)
	if got := b.see(); len(got) > 0 {
		t.Errorf("the choked connection got %q", got)
	}
	r.heldDial = true
	r.lose(r.backend(1), errRefused)
	post(3) // waits for a dial
	b.grow(0, 1<<20)
	b.wantPart(`DATA 3 "hello" END`)
}
