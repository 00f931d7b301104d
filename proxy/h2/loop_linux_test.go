package h2

import (
	"crypto/tls"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A loop that can no longer wait ends its connections, and Run returns the error.
func TestLoopThatCannotWait(t *testing.T) {
	b := newHolding("")
	t.Cleanup(func() { close(b.release) })
	s := newStand(t, "loop", b, nil)
	res := s.begin("/hold", len("begun "))
	for _, sh := range s.server.shards {
		must.Do(t, sh.loop.file.SetReadDeadline(time.Now()))
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("a response that was cut off looks complete")
	}
	select {
	case <-s.stopped:
	case <-time.After(10 * time.Second):
		t.Fatal("Run did not return")
	}
	if !errors.Is(s.runErr, os.ErrDeadlineExceeded) {
		t.Errorf("Run returned %v", s.runErr)
	}
}

// A turn that filled its events reports that there may be more, because epoll tells nothing twice.
func TestFullTurn(t *testing.T) {
	s := newStand(t, "loop", pings(t), nil)
	lp := must.Get(newLoop(s.server.shards[0]))(t)
	defer lp.file.Close()
	r, w, err := os.Pipe()
	must.Do(t, err)
	defer r.Close()
	must.Do(t, w.Close()) // r is readable
	for n := range loopEvents + 1 {
		if more, err := lp.takeTurn(); more != (n == loopEvents) || err != nil {
			t.Fatalf("with %d events: more %v, %v", n, more, err)
		}
		fd := must.Get(syscall.Dup(int(r.Fd())))(t)
		defer syscall.Close(fd)
		lp.links = append(lp.links, make([]*link, fd+1)...)
		must.Do(t, syscall.EpollCtl(lp.fd, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}))
	}
}

// Sixteen connections send 200 requests each at once, then another connection sends one. It does
// not wait for all of them, and all are answered.
func TestTurnsAreShared(t *testing.T) {
	const strangers, each = 16, 200
	var order []string // guarded by the shard's mutex
	busy, gate := make(chan struct{}), make(chan struct{})
	s := &stand{t: t, ended: make(chan Outcome, strangers*each+2)}
	answer := made(200)
	s.start(Config{Shards: 1, Decide: func(_ *ConnInfo, h *Head, _ func(Plan)) (Plan, bool) {
		if order = append(order, h.Path); h.Path == "/gate" {
			close(busy)
			<-gate
		}
		return Plan{Answer: answer, Done: s.done}, true
	}})
	first, innocent := s.greet(), s.greet()
	var all []*tls.Conn
	for range strangers {
		all = append(all, s.greet())
	}
	send := func(c *tls.Conn, n int, path string) { must.Get(c.Write(many(t, n, path)))(t) }
	send(first, 1, "/gate")
	<-busy
	for _, c := range all {
		send(c, each, "/stranger")
	}
	send(innocent, 1, "/innocent")
	close(gate)
	for range strangers*each + 2 {
		<-s.ended
	}
	if at := slices.Index(order, "/innocent"); at > 1+strangers*turnPlans {
		t.Errorf("%d requests of other connections were handled first", at)
	}
}

// Four connections have 3000 requests waiting each, and keep sending other frames. That gives them
// no extra turns: another connection's request waits for one turn of each.
func TestOneTurnEach(t *testing.T) {
	const strangers, each, sent = 4, 3000, 3000
	var (
		handled, at int // requests of the strangers so far, and at the innocent's request; guarded by the shard's mutex
		all         []*tls.Conn
		innocent    *tls.Conn
	)
	busy, gate := make(chan struct{}), make(chan struct{})
	s := &stand{t: t, ended: make(chan Outcome, strangers*each+2)}
	answer := made(204)
	send := func(c *tls.Conn, b []byte) {
		if _, err := c.Write(b); err != nil {
			t.Error(err)
		}
	}
	stranger := func() {
		if handled++; handled%16 == 0 {
			for _, c := range all {
				send(c, wire.FrameHeader{Type: http2.FrameSettings, Flags: http2.FlagSettingsAck}.Append(nil))
			}
		}
		if handled == sent {
			send(innocent, many(t, 1, "/innocent"))
		}
	}
	s.start(Config{Shards: 1, Decide: func(_ *ConnInfo, h *Head, _ func(Plan)) (Plan, bool) {
		switch h.Path {
		case "/gate":
			close(busy)
			<-gate
		case "/innocent":
			at = handled
		default:
			stranger()
		}
		return Plan{Answer: answer, Done: s.done}, true
	}})
	first := s.greet()
	innocent = s.greet()
	for range strangers {
		all = append(all, s.greet())
	}
	send(first, many(t, 1, "/gate"))
	<-busy
	for _, c := range all {
		send(c, many(t, each, "/stranger"))
	}
	close(gate)
	for range strangers*each + 2 {
		<-s.ended
	}
	if at > sent+loopHeads+strangers*turnPlans {
		t.Errorf("%d requests of other connections were handled first", at-sent)
	}
}
