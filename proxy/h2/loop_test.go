package h2

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A loop that can no longer wait ends its connections, and Run returns the error.
func TestLoopThatCannotWait(t *testing.T) {
	b := newHolding()
	t.Cleanup(func() { close(b.release) })
	s := newStand(t, "loop", b, nil)
	res := s.begun(s.do("GET", "/hold", nil))
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
	lp := newLoop(s.server.shards[0])
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

// Four connections have 3000 requests waiting each, and keep sending other frames. That gives them
// no extra turns: another connection's request waits for one turn of each, and all are answered.
func TestOneTurnEach(t *testing.T) {
	const strangers, each, sent = 4, 3000, 3000
	var (
		handled, at int // requests of the strangers so far, and at the innocent's request; guarded by the shard's mutex
		all         []*leanClient
		innocent    *leanClient
	)
	busy, gate := make(chan struct{}), make(chan struct{})
	answer := made(204)
	s := newStand(t, "loop", nil, func(h *wire.Head, p *engine.Plan) {
		p.Forward, p.Answer = nil, answer
		switch h.Path {
		case "/gate":
			close(busy)
			<-gate
		case "/innocent":
			at = handled
		default:
			if handled++; handled%16 == 0 {
				for _, c := range all {
					must.Do(t, errors.Join(c.fr.WriteSettingsAck(), c.w.Flush()))
				}
			}
			if handled == sent {
				must.Do(t, innocent.gets(1, "/innocent"))
			}
		}
	}, func(c *Config) { c.Shards = 1 })
	first := s.greet()
	innocent = s.greet()
	for range strangers {
		all = append(all, s.greet())
	}
	must.Do(t, first.gets(1, "/gate"))
	<-busy
	for _, c := range all {
		must.Do(t, c.gets(each, "/stranger"))
	}
	close(gate)
	for range strangers*each + 2 {
		<-s.ended
	}
	if at > sent+loopHeads+strangers*turnPlans {
		t.Errorf("%d requests of other connections were handled first", at-sent)
	}
}
