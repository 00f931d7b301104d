package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The end of a drain ends every session, also one that is accepted just then. The process ends
// next, so all of them are recorded before.
func TestSessionsEnd(t *testing.T) {
	seen := make(logbook.Lines, 1)
	access := accesslog.New(accesslog.Config{Writer: seen})
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}, remote: switching})
	_, br, _ := w.raw(t, "GET "+remoteGV+"/x", websocket+"x") // also what was sent before the 101 is echoed
	must.Get(br.ReadByte())(t)
	check.Same(t, 1, w.proxy.Sessions(), "sessions")
	w.proxy.EndSessions(t.Context())
	check.Same(t, 0, w.proxy.Sessions(), "sessions")
	ended, end := context.WithCancel(t.Context())
	end()
	_ = access.Run(ended) // writes what was added
	must.Be(t, len(seen) == 1, "%d lines of the access log", len(seen))
	check.Has(t, <-seen, `"end":"drain"`)
	check.Same(t, true, check.Err(br.ReadByte()) != nil, "the session has ended")
	late := w.dial(t, w.front, nil)
	fmt.Fprintf(late, "GET %s/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-bob\r\n%s", remoteGV, websocket)
	check.Same(t, false, errors.Is(check.Err(io.ReadAll(late)), os.ErrDeadlineExceeded), "a session that began later is still open")
}

// A session that its backend has ended is complete, though its client has gone afterwards.
func TestSessionIsComplete(t *testing.T) {
	access, seen, _ := newLog(t)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}, remote: hijacked(func(c io.ReadWriter, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nbye")
	})})
	_, br, conn := w.raw(t, "GET "+remoteGV+"/x", websocket)
	_, _ = io.ReadAll(br)
	must.Do(t, conn.Close())
	check.Has(t, <-seen, `"bytes":3,`, `"end":"complete"`)
}

// The watches that a drain ends outside the engine end within the grace, each at a time of its own.
func TestWatchesEndApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, over := new(Proxy), new(atomic.Int64)
		p.endBy.Store(new(time.Now().Add(time.Minute)))
		p.ending, p.end = context.WithCancel(t.Context())
		for range 20 {
			r, end := p.endable(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), &events{})
			defer end()
			context.AfterFunc(r.Context(), func() { over.Add(1) })
		}
		p.end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		half := over.Load()
		check.Same(t, true, half > 0 && half < 20, "%d of 20 have ended after half of the time", half)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		check.Same(t, 20, over.Load(), "have ended in the end")
	})
}

// EndSessions waits for what is not recorded yet, but not for ever.
func TestSessionsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{sessions: sessions{end: func() {}}}
		p.serving.Add(2)
		limit, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		began := time.Now()
		p.EndSessions(limit)
		check.Same(t, time.Minute, time.Since(began), "wait for two requests that do not end")
		p.serving.Add(-1)
		time.AfterFunc(990*time.Millisecond, func() { p.serving.Add(-1) }) // seen with the next look
		p.EndSessions(t.Context())
		check.Same(t, time.Minute+time.Second, time.Since(began), "wait for one that ends after a second")
	})
}
