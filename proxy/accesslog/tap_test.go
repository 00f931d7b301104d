package accesslog

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

type slow struct {
	*httptest.ResponseRecorder
	to io.Writer
}

func (s *slow) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return s.to.Write(p)
}

// look opens a tap. It must be called in a bubble of synctest.
func look(taps *Taps, query string) *io.PipeReader {
	r, w := io.Pipe()
	go func() {
		taps.ServeHTTP(&slow{ResponseRecorder: httptest.NewRecorder(), to: w}, httptest.NewRequest(http.MethodGet, "/?"+query, nil))
		_ = w.Close()
	}()
	synctest.Wait()
	return r
}

// A tap shows the lines that match it, and no others, soon and until its end.
func TestTap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taps := &Taps{}
		began := time.Now()
		var streams []*bufio.Scanner
		for _, query := range []string{"user=jane", "path=/apis/wardle/", "path=/apis/wardle/&user=jane"} {
			streams = append(streams, bufio.NewScanner(look(taps, query+"&seconds=2")))
		}
		for i, line := range []Line{
			{User: "joe", Path: "/apis/wardle/a"}, {User: "joe", Path: "/apis/other/a"}, {User: "jane", Path: "/api"}, {User: "admin", Impersonator: "jane", Path: "/apis/wardle/b"},
		} {
			line.Status = 200 + i
			taps.Add(&line)
		}
		for i, want := range [][]int{{202, 203}, {200, 203}, {203}} {
			for _, status := range want {
				check.Same(t, true, streams[i].Scan(), "tap %d has a line", i)
				check.Has(t, streams[i].Text(), fmt.Sprintf(`"status":%d,`, status))
			}
		}
		check.Same(t, true, time.Since(began) <= tapTurn, "lines came within a turn")
		for i, lines := range streams {
			check.Same(t, false, lines.Scan(), "tap %d goes on: %s", i, lines.Text())
		}
		check.Same(t, 2*time.Second, time.Since(began), "time of the taps")
	})
}

// Taps are limited in number, length and time. One user leaves one to others.
func TestTapRefuses(t *testing.T) {
	taps := &Taps{}
	ask := func(by, query string) int {
		w := httptest.NewRecorder()
		ctx, leave := context.WithCancel(request.WithUser(t.Context(), &user.DefaultInfo{Name: by}))
		leave() // a tap that is opened ends at once
		taps.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/?"+query, nil))
		return w.Code
	}
	for _, query := range []string{"", "user=x&seconds=61", "user=x&seconds=0", "user=x&seconds=9223372037", "user=x&seconds=y", "path=/" + strings.Repeat("x", maxTapWord)} {
		check.Same(t, http.StatusBadRequest, ask("ann", query), "status for %.20s", query)
	}
	for _, query := range []string{"user=x&seconds=60", "user=x&seconds=1", "path=" + strings.Repeat("x", maxTapWord)} {
		check.Same(t, http.StatusOK, ask("ann", query), "status for %.20s", query)
	}
	var open []*tap
	for i, by := range []string{"ann", "ann", "ann", "bob"} {
		one := &tap{by: bound.Source{User: by}}
		check.Same(t, http.StatusOK, ask(by, "user=x"), "status for %s, tap %d", by, i)
		check.Same(t, true, taps.replace(one, true), "%s's tap %d", by, i)
		open = append(open, one)
		if i == maxTaps-2 {
			check.Same(t, http.StatusTooManyRequests, ask("ann", "user=x"), "status for a user who has all others")
		}
	}
	check.Same(t, http.StatusTooManyRequests, ask("eve", "user=x"), "status for one tap too many")
	for _, one := range open {
		taps.replace(one, false)
	}
	check.Same(t, false, taps.Active(), "active at the end")
}

// Many requests give a tap a limited number of lines and bytes, and it reports the omitted ones. A
// client that does not read keeps its tap no longer than it asked for. A drain ends it.
func TestTapBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var draining atomic.Bool
		taps := &Taps{Draining: draining.Load}
		unread, read := look(taps, "user=joe&seconds=1"), bufio.NewScanner(look(taps, "user=jane"))
		for range 10 * tapLines {
			taps.Add(&Line{User: "jane"})
		}
		for range 10 * tapLines {
			taps.Add(&Line{User: "joe", Path: strings.Repeat("x", tapBytes)})
		}
		for _, one := range *taps.open.Load() {
			one.mu.Lock()
			check.Same(t, true, one.lines <= tapLines && len(one.buf) <= 2*tapBytes+1024, "a bound for %d lines, %d bytes", one.lines, len(one.buf))
			one.mu.Unlock()
		}
		lines := 0
		for ; read.Scan() && strings.Contains(read.Text(), `"request"`); lines++ {
		}
		check.Same(t, tapLines, lines, "lines")
		check.Same(t, fmt.Sprintf(`{"msg":"left out","lines":%d}`, 9*tapLines), read.Text(), "the line behind them")
		time.Sleep(time.Second)
		check.Same(t, 1, len(*taps.open.Load()), "taps, only jane's")
		_ = unread.Close()
		draining.Store(true)
		check.Same(t, false, read.Scan(), "a line in a drain: %s", read.Text())
		synctest.Wait()
		check.Same(t, false, taps.Active(), "active in a drain")
	})
}

// Without taps, a request only reads an atomic pointer. With one, it allocates nothing.
func TestTapAllocates(t *testing.T) {
	var none *Taps
	taps := &Taps{}
	check.Same(t, false, none.Active() || taps.Active(), "active without a tap")
	one := &tap{user: "jane"}
	taps.replace(one, true)
	line := &Line{User: "jane", Path: "/apis", Ended: time.Now()}
	var buf []byte
	for range 2 {
		for range tapLines + 1 {
			taps.Add(line)
		}
		buf = one.take(buf)
	}
	check.Same(t, true, strings.HasSuffix(string(buf), `{"msg":"left out","lines":1}`+"\n"), "a single line that is left out is reported: %s", buf)
	check.Same(t, 0, testing.AllocsPerRun(tapLines/2, func() { taps.Add(line) }), "allocations per line")
}
