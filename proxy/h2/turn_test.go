package h2

import (
	"bytes"
	"crypto/tls"
	"io"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// many are requests of a connection that has sent its preface, as it may send them at once.
func many(t *testing.T, n int, path string) []byte {
	t.Helper()
	var all, block bytes.Buffer
	fr, enc := http2.NewFramer(&all, nil), hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, f := range []hpack.HeaderField{field(":method", "GET"), field(":scheme", "https"), field(":authority", "a"), field(":path", path)} {
			if err := enc.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		if err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	return all.Bytes()
}

// A turn under the mutex ends after so many requests, whatever has come.
func TestTurnHasSoManyHeads(t *testing.T) {
	r := newRig(t)
	c := r.client()
	b := many(t, 200, "/")
	for _, want := range []int{64, 128, 192, 200} {
		b = r.e.feed(c.c, b)
		if n := len(c.c.streams); n != want {
			t.Fatalf("%d requests are under way, want %d", n, want)
		}
	}
	if len(b) > 0 {
		t.Errorf("%d bytes are left", len(b))
	}
}

// What waits for another turn is counted once as input, and as held as long as it waits.
func TestTurnsCountInputOnce(t *testing.T) {
	r := newRig(t)
	c := r.client()
	c.c.bytesIn = 0
	b := many(t, 200, "/")
	held := func() int { return c.c.weight - c.c.heads - len(c.c.out) - 2*c.c.inflight }
	rest := r.e.feed(c.c, b)
	if n := held(); n != len(rest) {
		t.Errorf("%d bytes wait, and %d are counted", len(rest), n)
	}
	r.feed(c.c, rest)
	if n := held(); n != 0 || c.c.bytesIn != int64(len(b)) {
		t.Errorf("%d bytes have come in; %d are counted, and %d as waiting", len(b), c.c.bytesIn, n)
	}
	lost := r.client()
	r.e.feed(lost.c, b)
	r.e.lose(lost.c, errServerEnded)
	if n := lost.c.weight; n != 0 {
		t.Errorf("%d bytes of a connection that has ended are counted", n)
	}
}

// What a turn has left is handled in the next one, on every driver.
func TestMoreThanATurn(t *testing.T) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			s := newStand(t, driver, newHolding(""), func(_ *Head, p *Plan) {
				p.Forward, p.Answer = nil, &Answer{Status: 200, Fields: []hpack.HeaderField{field(":status", "200")}}
			})
			c := s.greet()
			if _, err := c.Write(many(t, 3*turnHeads, "/")); err != nil {
				t.Fatal(err)
			}
			for range 3 * turnHeads {
				<-s.ended
			}
		})
	}
}

// greet connects, and returns when the server has the connection.
func (s *stand) greet() *tls.Conn {
	c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		s.t.Fatal(err)
	}
	fr := http2.NewFramer(c, c)
	if err := fr.WriteSettings(); err != nil {
		s.t.Fatal(err)
	}
	if _, err := fr.ReadFrame(); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Five hundred requests wait for one answer. When it comes one goroutine has them go on, and the
// others do not queue for the mutex.
func TestResumedTogether(t *testing.T) {
	const n = 500
	resumes := make(chan func(Plan), n)
	s := &stand{t: t, ended: make(chan Outcome, n)}
	s.start(Config{Shards: 1, MaxStreams: n, Decide: func(_ *ConnInfo, _ *Head, resume func(Plan)) (Plan, bool) {
		resumes <- resume
		return Plan{}, false
	}})
	if _, err := s.greet().Write(many(t, n, "/")); err != nil {
		t.Fatal(err)
	}
	all := make([]func(Plan), n)
	for i := range all {
		all[i] = <-resumes
	}
	sh := s.server.shards[0]
	sh.mu.Lock()
	back := make(chan struct{}, n)
	for _, resume := range all {
		go func() {
			resume(Plan{Answer: &Answer{Status: 200, Fields: []hpack.HeaderField{field(":status", "200")}}, Done: s.done})
			back <- struct{}{}
		}()
	}
	for range n - 1 {
		<-back
	}
	sh.mu.Unlock()
	for range n {
		<-s.ended
	}
}
