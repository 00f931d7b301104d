package h2

import (
	"bytes"
	"crypto/tls"
	"io"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// many returns n requests for a connection that has sent its preface.
func many(t *testing.T, n int, path string) []byte {
	t.Helper()
	var all, block bytes.Buffer
	fr, enc := http2.NewFramer(&all, nil), hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, f := range []hpack.HeaderField{field(":method", "GET"), field(":scheme", "https"), field(":authority", "a"), field(":path", path)} {
			must.Do(t, enc.WriteField(f))
		}
		must.Do(t, fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}))
	}
	return all.Bytes()
}

// Input that exceeds a turn is handled in the next one, on every driver.
func TestMoreThanATurn(t *testing.T) {
	onDrivers(t, func(t *testing.T, driver string) {
		s := newStand(t, driver, newHolding(""), func(_ *Head, p *Plan) { p.Forward, p.Answer = nil, made(200) })
		must.Get(s.greet().Write(many(t, 3*turnPlans, "/")))(t)
		for range 3 * turnPlans {
			<-s.ended
		}
	})
}

// If the engine leaves some of a full buffer for the next turn, later input does not overtake it.
func TestFullBufferIsNotOvertaken(t *testing.T) {
	const n = 4 * turnPlans
	decided := 0
	s := &stand{t: t, ended: make(chan Outcome, n)}
	s.start(Config{Shards: 1, portable: true, MaxStreams: n, Decide: func(*ConnInfo, *Head, func(Plan)) (Plan, bool) {
		decided++ // on this goroutine, which calls decrypt
		return Plan{Answer: made(200), Done: s.done}, true
	}})
	raw, server, client, sent := heldTLS(t, tls.VersionTLS13)
	go func() { _, _ = io.Copy(io.Discard, sent.Conn) }() // answers; ends with the connection
	var input bytes.Buffer
	input.WriteString(http2.ClientPreface)
	must.Do(t, http2.NewFramer(&input, nil).WriteSettings())
	input.Write(many(t, n, "/"))
	must.Get(client.Write(input.Bytes()))(t)

	sh := s.server.shards[0]
	l := &link{sh: sh, tls: server, raw: raw, info: &ConnInfo{}}
	l.room.L = &sh.mu
	sh.lock()
	l.attach(sh.e.AcceptClient())
	sh.settle()
	raw.rest = sent.held
	buf := make([]byte, input.Len()/2) // full at once, with the heads of two turns
	for range n {
		must.Do(t, l.decrypt(buf))
	}
	check.Same(t, n, decided, "requests that the engine read")
	sh.lock()
	l.lose(io.EOF)
}

// greet connects, and returns when the server serves the connection.
func (s *stand) greet() *tls.Conn {
	c := must.Get(tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}))(s.t)
	s.t.Cleanup(func() { _ = c.Close() })
	must.Get(io.WriteString(c, http2.ClientPreface))(s.t)
	fr := http2.NewFramer(c, c)
	must.Do(s.t, fr.WriteSettings())
	must.Get(fr.ReadFrame())(s.t)
	return c
}

// Five hundred requests wait for one decision. When it comes, one goroutine resumes all of them;
// the others do not queue for the mutex.
func TestResumedTogether(t *testing.T) {
	const n = 500
	resumes := make(chan func(Plan), n)
	s := &stand{t: t, ended: make(chan Outcome, n)}
	s.start(Config{Shards: 1, MaxStreams: n, Decide: func(_ *ConnInfo, _ *Head, resume func(Plan)) (Plan, bool) {
		resumes <- resume
		return Plan{}, false
	}})
	must.Get(s.greet().Write(many(t, n, "/")))(t)
	all := make([]func(Plan), n)
	for i := range all {
		all[i] = <-resumes
	}
	sh := s.server.shards[0]
	sh.mu.Lock()
	back := make(chan struct{}, n)
	for _, resume := range all {
		go func() {
			resume(Plan{Answer: made(200), Done: s.done})
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
