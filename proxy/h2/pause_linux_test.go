package h2

import (
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// paused reports whether the loops have stopped reading a connection.
func (s *stand) paused() (some bool) {
	for _, sh := range s.server.shards {
		sh.loop.mu.Lock()
		for _, l := range sh.loop.links {
			some = some || l != nil && l.paused.Load()
		}
		sh.loop.mu.Unlock()
	}
	return some
}

// A client that does not read its answers is no longer read from, until it reads them.
func TestPausedClientGoesOn(t *testing.T) {
	const n = 6000 // more than the sockets of both sides can buffer
	s := newStand(t, "loop", newHolding(""), func(_ *Head, p *Plan) {
		p.Forward, p.Answer = nil, &Answer{Status: 200, Fields: []hpack.HeaderField{field(":status", "200"), field("x", strings.Repeat("x", 8<<10))}}
	})
	c := s.greet()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(many(t, n, "/"+strings.Repeat("long", 1000)))
		sent <- err
	}()
	must.Soon(t, time.Minute, "nothing is read from it, for so much waits", s.paused)
	fr, answers := http2.NewFramer(io.Discard, c), 0
	fr.SetMaxReadFrameSize(1 << 24)
	for answers < n {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatalf("after %d answers: %v", answers, err)
		}
		if f.Header().Type == http2.FrameHeaders {
			answers++
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
