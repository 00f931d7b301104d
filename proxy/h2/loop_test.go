package h2

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
	check.Same(t, true, check.Err(io.ReadAll(res.Body)) != nil, "a response that was cut off does not look complete")
	must.Come(t, 10*time.Second, "Run returns", s.stopped)
	check.Is(t, os.ErrDeadlineExceeded, s.runErr, "Run")
}

// A turn that filled its events reports that there may be more, because epoll tells nothing twice.
func TestFullTurn(t *testing.T) {
	s := newStand(t, "loop", pings(t), nil)
	lp := newLoop(s.server.shards[0])
	defer lp.file.Close()
	r, w := must.Get2(os.Pipe())(t)
	defer r.Close()
	must.Do(t, w.Close()) // r is readable
	for n := range loopEvents + 1 {
		check.Same(t, n == loopEvents, must.Get(lp.takeTurn())(t), "there may be more than %d events", n)
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
		waits       *rawConn // the innocent's, at the server
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
				for !waits.unread() { // a busy kernel delivers it later
					runtime.Gosched()
				}
			}
		}
	}, func(c *Config) { c.Shards = 1 })
	first := s.greet()
	innocent = s.greet()
	must.Soon(t, 10*time.Second, "the loop has the innocent's connection", func() bool {
		lp := s.server.shards[0].loop
		lp.mu.Lock()
		defer lp.mu.Unlock()
		for _, l := range lp.links {
			if l != nil && l.info != nil && l.info.Remote.String() == innocent.LocalAddr().String() {
				waits = l.raw
			}
		}
		return waits != nil
	})
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
	check.Within(t, 0, loopHeads+strangers*turnPlans, at-sent, "requests of other connections that were handled first")
}

// If the engine leaves some of a buffer for the next turn, neither later input nor the connection's end overtakes it.
func TestFullBufferIsNotOvertaken(t *testing.T) {
	const n = 4 * turnPlans
	decided := 0
	s := newStand(t, "loop", nil, func(_ *wire.Head, p *engine.Plan) {
		decided++ // on this goroutine, which calls decrypt
		p.Forward, p.Answer = nil, made(200)
	}, func(c *Config) { c.Shards, c.MaxStreams = 1, n })
	raw, server, client, sent := heldTLS(t, tls.VersionTLS13)
	nowhere := must.Get(os.OpenFile(os.DevNull, os.O_WRONLY, 0))(t)
	defer nowhere.Close()
	raw.fd = int(nowhere.Fd()) // for the answers
	must.Do(t, errors.Join(greet(t, client).gets(n, "/"), client.CloseWrite()))

	sh := s.server.shards[0]
	l := &link{sh: sh, tls: server, raw: raw, info: &ConnInfo{}}
	sh.lock()
	l.c = sh.e.AcceptClient()
	l.c.Value = l
	sh.settle()
	raw.rest = sent.held
	buf := make([]byte, len(sent.held)/2) // full at once, with the heads of two turns
	err := l.decrypt(buf)
	check.Same(t, true, l.c.Sealed > 0, "what TLS has not read yet is counted")
	for ; err == nil; err = l.decrypt(buf) {
		check.Same(t, raw.sealed(), l.c.Sealed, "bytes that have become no content, and that are counted")
	}
	check.Same(t, n, decided, "requests that the engine read before the end: %v", err)
	sh.lock()
	sh.e.Ended(l.c, io.EOF)
	sh.settle()
}

// Five hundred requests, whose heads are input for several turns, wait for one decision. When it
// comes, one goroutine resumes all of them; the others do not queue for the mutex.
func TestResumedTogether(t *testing.T) { onDrivers(t, testResumedTogether) }

func testResumedTogether(t *testing.T, driver string) {
	const n = 8 * turnPlans
	resumes := make(chan func(engine.Plan), n)
	s := newStand(t, driver, nil, nil, func(c *Config) {
		c.Shards, c.MaxStreams = 1, n
		c.Decide = func(_ *ConnInfo, _ *wire.Head, resume func(engine.Plan)) (engine.Plan, bool) {
			resumes <- resume
			return engine.Plan{}, false
		}
	})
	must.Do(t, s.greet().gets(n, "/"))
	all := make([]func(engine.Plan), n)
	for i := range all {
		all[i] = <-resumes
	}
	sh := s.server.shards[0]
	sh.mu.Lock()
	back := make(chan struct{}, n)
	for _, resume := range all {
		go func() {
			resume(engine.Plan{Answer: made(200), Done: s.done})
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

// bodySize is the size of TestLargeBodies' body. make interop runs it with a gigabyte.
var bodySize = flag.Int64("body", 16<<20, "bytes of TestLargeBodies' body")

// A large body goes to the backend and back at the same time, byte for byte.
func TestLargeBodies(t *testing.T) { onDrivers(t, testLargeBodies) }

func testLargeBodies(t *testing.T, driver string) {
	s := newStand(t, driver, httpEcho(), nil)
	s.client.Timeout = 0
	body := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), *bodySize) }
	digest := func(r io.Reader) string {
		h := sha256.New()
		n, err := io.Copy(h, r)
		return fmt.Sprintf("%d %v %x", n, err, h.Sum(nil))
	}
	want := digest(body())
	check.Same(t, want, digest(s.do("PUT", "/echo", body()).Body), "the body that came back to a client")
	check.Same(t, want, digest(s.guest("PUT", "/echo", body()).Body), "the body that came back to a guest")
}

// httpEcho answers with the request's body.
func httpEcho() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-T", "end")
	}
}
