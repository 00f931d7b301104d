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

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// look opens a tap, and returns a scanner of its lines.
func look(t *testing.T, url string) (lines *bufio.Scanner, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	res := must.Get(new(http.Client).Do(r))(t)
	t.Cleanup(func() { cancel(); res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, res.Status)
	}
	return bufio.NewScanner(res.Body), cancel
}

// A tap immediately shows the lines that match it, and no others.
func TestTap(t *testing.T) {
	taps := &Taps{}
	s := httptest.NewServer(taps)
	t.Cleanup(s.Close) // after all taps end
	jane, _ := look(t, s.URL+"?user=jane")
	flunders, _ := look(t, s.URL+"?path=/apis/wardle/&seconds=2")
	both, _ := look(t, s.URL+"?path=/apis/wardle/&user=jane")
	for i, line := range []Line{
		{User: "joe", Path: "/apis/wardle/a"}, {User: "joe", Path: "/apis/other/a"}, {User: "jane", Path: "/api"}, {User: "admin", Impersonator: "jane", Path: "/apis/wardle/b"},
	} {
		line.Status = 200 + i
		taps.Add(&line)
	}
	for _, tc := range []struct {
		name  string
		lines *bufio.Scanner
		want  []int
	}{{"user", jane, []int{202, 203}}, {"path", flunders, []int{200, 203}}, {"both", both, []int{203}}} {
		for _, want := range tc.want {
			if !tc.lines.Scan() || !strings.Contains(tc.lines.Text(), fmt.Sprintf(`"status":%d,`, want)) {
				t.Errorf("%s: %q, want status %d", tc.name, tc.lines.Text(), want)
			}
		}
	}
	if flunders.Scan() {
		t.Errorf("after its end: %s", flunders.Text())
	}
}

// Taps are limited in number, length and time.
func TestTapRefuses(t *testing.T) {
	taps := &Taps{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		taps.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: r.URL.Query().Get("by")})))
	})
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close) // after all taps end
	for _, query := range []string{"", "user=x&seconds=61", "user=x&seconds=0", "user=x&seconds=y", "path=/" + strings.Repeat("x", maxTapWord)} {
		w := httptest.NewRecorder()
		if taps.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?"+query, nil)); w.Code != http.StatusBadRequest {
			t.Errorf("%.20s: %d", query, w.Code)
		}
	}
	var ends []func()
	open := func(by string) {
		_, end := look(t, s.URL+"?user=x&by="+by)
		ends = append(ends, end)
	}
	tooMany := func(by, what string) {
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?user=x&by="+by, nil)); w.Code != http.StatusTooManyRequests {
			t.Errorf("%s: %d", what, w.Code)
		}
	}
	for range maxTaps - 1 {
		open("ann")
	}
	tooMany("ann", "the last one, by a user who has all others")
	open("bob")
	tooMany("eve", "one tap too many")
	for _, end := range ends {
		end()
	}
	for patience := time.Now().Add(10 * time.Second); taps.Active(); {
		if time.Now().After(patience) {
			t.Fatal("taps outlive their clients")
		}
	}
}

// Many requests give a tap a limited number of lines and bytes, and it reports the omitted ones. A
// client that does not read keeps its tap no longer than it asked for. A drain ends it.
func TestTapBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var draining atomic.Bool
		taps := &Taps{Draining: draining.Load}
		serve := func(query string) *io.PipeReader {
			r, w := io.Pipe()
			go func() {
				taps.ServeHTTP(&slow{ResponseRecorder: httptest.NewRecorder(), to: w}, httptest.NewRequest(http.MethodGet, "/?"+query, nil))
				_ = w.Close()
			}()
			synctest.Wait()
			return r
		}
		unread := serve("user=joe&seconds=1")
		read := bufio.NewScanner(serve("user=jane"))
		for range 10 * tapLines {
			taps.Add(&Line{User: "jane"})
		}
		for range 10 * tapLines {
			taps.Add(&Line{User: "joe", Path: strings.Repeat("x", tapBytes)})
		}
		for _, one := range *taps.open.Load() {
			one.mu.Lock()
			if one.lines > tapLines || len(one.buf) > 2*tapBytes+1024 {
				t.Errorf("%d lines, %d bytes", one.lines, len(one.buf))
			}
			one.mu.Unlock()
		}
		lines := 0
		for ; read.Scan() && strings.Contains(read.Text(), `"request"`); lines++ {
		}
		if want := fmt.Sprintf(`{"msg":"left out","lines":%d}`, 9*tapLines); lines != tapLines || read.Text() != want {
			t.Errorf("%d lines, then %s", lines, read.Text())
		}
		time.Sleep(time.Second)
		if n := len(*taps.open.Load()); n != 1 {
			t.Errorf("%d taps, want only jane's", n)
		}
		_ = unread.Close()
		draining.Store(true)
		if read.Scan() {
			t.Error(read.Text())
		}
		synctest.Wait()
		if taps.Active() {
			t.Error("still open")
		}
	})
}

// A tap also reports a single omitted line.
func TestTapLeavesOneOut(t *testing.T) {
	var one tap
	for range tapLines + 1 {
		one.add(&Line{})
	}
	if got := string(one.take(nil)); !strings.HasSuffix(got, `{"msg":"left out","lines":1}`+"\n") {
		t.Error(got)
	}
}

// slow is a client that reads as the test does.
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

// Without taps, a request only reads an atomic pointer. With one, it allocates nothing.
func TestTapAllocates(t *testing.T) {
	var none *Taps
	taps := &Taps{}
	if none.Active() || taps.Active() {
		t.Error("active without a tap")
	}
	one := &tap{user: "jane"}
	taps.replace(one, true)
	line := &Line{User: "jane", Path: "/apis", Ended: time.Now()}
	var buf []byte
	for range 2 {
		for range tapLines {
			taps.Add(line)
		}
		buf = one.take(buf)
	}
	if n := testing.AllocsPerRun(tapLines/2, func() { taps.Add(line) }); n > 0 {
		t.Errorf("%v allocations per line", n)
	}
}
