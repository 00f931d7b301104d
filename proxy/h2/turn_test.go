package h2

import (
	"crypto/tls"
	"io"
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// If the engine leaves some of a full buffer for the next turn, later input does not overtake it.
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
	must.Do(t, greet(t, client).gets(n, "/"))

	sh := s.server.shards[0]
	l := &link{sh: sh, tls: server, raw: raw, info: &ConnInfo{}}
	sh.lock()
	l.c = sh.e.AcceptClient()
	l.c.Value = l
	sh.settle()
	raw.rest = sent.held
	buf := make([]byte, len(sent.held)/2) // full at once, with the heads of two turns
	for range n {
		must.Do(t, l.decrypt(buf))
	}
	check.Same(t, n, decided, "requests that the engine read")
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
