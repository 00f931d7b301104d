package h2

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
)

// All interim heads of a response together must not exceed the limit of one head.
func TestGuestLongInterims(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("0123456789", 10_000))
		for range 3 {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}))
	_, err := x.ask(t.Context(), "GET", "/", nil)
	var f *Failure
	if !errors.As(err, &f) || f.Reason != ReasonBadResponse {
		t.Errorf("got %v", err)
	}
	<-x.ended
	x.empty()
}

// Guests that do not read are treated like HTTP/2 clients that do not read: the largest holder is
// ended when the process holds too much.
func TestGuestsStayWithinBound(t *testing.T) {
	bound := hold.New(2 << 20)
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 16 {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	}), func(c *Config) { c.Memory, c.Shards = bound, 1 })
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

// A guest that does not read holds little after its deadline.
func TestGuestIsLate(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	}))
	res := x.must("GET", "/", nil, func(_ *http.Request, p *Plan) { p.Deadline = 10 * time.Millisecond })
	<-x.ended
	if n, err := io.Copy(io.Discard, res.Body); n == 0 || n > hold.Least+4<<10 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	x.empty()
}

// measured is a body that reports the size of the buffer it gets.
type measured chan int

func (m measured) Read(p []byte) (int, error) {
	m <- cap(p)
	return 0, io.EOF
}

// An upload whose data has not arrived holds no more than one read's buffer.
func TestGuestUploadHoldsLittle(t *testing.T) {
	x := newHotel(t, "loop", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	body := make(measured, 1) // the engine may read it after the answer
	_ = x.read(x.must("POST", "/", body))
	if room := <-body; room != guestChunk {
		t.Errorf("%d bytes are held for it, want %d", room, guestChunk)
	}
	<-x.ended
}
