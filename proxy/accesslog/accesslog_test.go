package accesslog

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func full() *Line {
	return &Line{
		Method: "GET", Path: `/apis/"quoted"`, Verb: "list", Status: 200, Bytes: 17, Took: 1500 * time.Microsecond, Proto: "HTTP/2.0", From: "192.0.2.1",
		User: "jane\n", Impersonator: "joe\\", APIService: "v1.x", AuditID: "id",
		In: 3, Waited: time.Microsecond, First: time.Millisecond, End: "lost", Endpoint: "10.0.0.1:443", Tries: 2, New: true, TLS: "TLS 1.3",
	}
}

func TestLine(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 8, 7, 65_999_999, time.FixedZone("", 3600))
	var c clock
	for _, tc := range []struct {
		name string
		line *Line
		want map[string]any
	}{
		{"full", full(), map[string]any{
			"time": "2026-11-21T08:08:07.065Z", "level": "INFO", "msg": "request", "method": "GET", "path": `/apis/"quoted"`, "verb": "list", "status": 200.,
			"bytes": 17., "took": 1.5e6, "proto": "HTTP/2.0", "from": "192.0.2.1", "user": "jane\n", "impersonator": "joe\\", "apiservice": "v1.x", "audit": "id",
			"in": 3., "waited": 1e3, "first": 1e6, "end": "lost", "endpoint": "10.0.0.1:443", "tries": 2., "new": true, "tls": "TLS 1.3",
		}},
		{"a backslash", &Line{Method: `\`}, map[string]any{
			"time": "2026-11-21T08:08:07.065Z", "level": "INFO", "msg": "request", "method": `\`, "path": "", "verb": "", "status": 0., "bytes": 0., "took": 0.,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := tc.line.append(nil, c.at(at))
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatalf("%v in %s", err, b)
			}
			check.Same(t, tc.want, got, "line")
			if n := bytes.Count(b, []byte("\n")); n != 1 || b[len(b)-1] != '\n' {
				t.Errorf("%d line ends in %q", n, b)
			}
		})
	}
}

func TestClock(t *testing.T) {
	var c clock
	for at := time.Date(2026, 12, 31, 23, 59, 58, 0, time.UTC); at.Year() == 2026 || at.Second() < 2; at = at.Add(333 * time.Millisecond) {
		if got, want := string(c.at(at)), at.Format("2006-01-02T15:04:05.000Z"); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
}

// Any value that a client sends makes one line of valid JSON, with that value.
func FuzzField(f *testing.F) {
	for _, s := range []string{"plain", "\"},{\"", "\n\x00\x7f", "é\u2028\xff", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := append(field([]byte("{"), `"x":`, s), '}')
		if !utf8.Valid(b) || bytes.ContainsAny(b, "\n\r\x00") {
			t.Errorf("%q", b)
		}
		var got struct{ X string }
		must.Do(t, json.Unmarshal(b, &got))
		want := strings.Map(func(r rune) rune { return r }, s) // invalid UTF-8 becomes U+FFFD
		if got.X != want {
			t.Errorf("%q, want %q", got.X, want)
		}
	})
}

func newLog(t *testing.T, cfg Config) *Log {
	t.Helper()
	return must.Get(New(cfg))(t)
}

// gate is a writer that blocks until it is opened, and counts writes.
type gate struct {
	open   chan struct{}
	mu     sync.Mutex // guards the rest
	all    bytes.Buffer
	writes int
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes++
	return g.all.Write(p)
}

func (g *gate) seen() (lines, writes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Count(g.all.String(), "\n"), g.writes
}

func TestGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		close(g.open)
		l := newLog(t, Config{Writer: g})
		stop := must.Run(t, l.Run)
		for range 100 {
			l.Add(7, full())
		}
		synctest.Wait()
		if lines, _ := g.seen(); lines != 0 {
			t.Errorf("%d lines at once", lines)
		}
		time.Sleep(gather + time.Millisecond)
		if lines, writes := g.seen(); lines != 100 || writes != 1 {
			t.Errorf("%d lines in %d writes", lines, writes)
		}
		// A full stripe is written early.
		for range soon / 100 {
			l.Add(7, full())
		}
		synctest.Wait()
		if lines, _ := g.seen(); lines < 101 {
			t.Error("a full stripe is not written")
		}
		// Run writes the remaining lines before it returns.
		l.Add(8, full())
		stop()
		if lines, _ := g.seen(); lines != 100+soon/100+1 {
			t.Errorf("%d lines at the end", lines)
		}
	})
}

// A writer that hangs uses a limited buffer and loses lines, which are counted. No request waits
// for it.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		reg := prometheus.NewRegistry()
		l := newLog(t, Config{Writer: g, Metrics: reg})
		stop := must.Run(t, l.Run)
		const added = 50_000
		for range added {
			l.Add(3, full())
		}
		time.Sleep(time.Second)
		for range added {
			l.Add(3, full())
		}
		lost := l.lost.Load()
		if lost == 0 || cap(l.stripes[3].buf) > 2*maxStripe {
			t.Errorf("%d lost, %d bytes kept", lost, cap(l.stripes[3].buf))
		}
		close(g.open)
		stop()
		if lines, _ := g.seen(); int64(lines)+lost != 2*added {
			t.Errorf("%d written and %d lost of %d", lines, lost, 2*added)
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader("")); err == nil {
			t.Error("no metric")
		}
	})
}

func TestBrokenWriter(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	l := newLog(t, Config{Writer: w})
	l.Add(1, full())
	l.Add(2, full())
	l.flush()
	check.Same(t, 2, l.lost.Load(), "lines lost")
}

func TestAddAllocates(t *testing.T) {
	l := newLog(t, Config{Writer: io.Discard})
	line := full()
	for range 1000 {
		l.Add(1, line)
	}
	l.flush()
	if n := testing.AllocsPerRun(100, func() { l.Add(1, line) }); n > 0 {
		t.Errorf("%v allocations per line", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	l := must.Get(New(Config{Writer: io.Discard}))(b)
	line := full()
	line.Path, line.User, line.Impersonator = "/apis/bench.example.com/v1/namespaces/default/objects/one", "system:serviceaccount:bench:user", ""
	for i := 0; b.Loop(); i++ {
		if l.Add(1, line); i%200 == 0 {
			l.flush()
		}
	}
}

func TestNew(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("New succeeded without a writer")
	}
	reg := prometheus.NewRegistry()
	newLog(t, Config{Writer: io.Discard, Metrics: reg})
	if _, err := New(Config{Writer: io.Discard, Metrics: reg}); err == nil {
		t.Error("the metrics are registered twice")
	}
}

// A sample omits the configured share of lines, and no errors.
func TestSample(t *testing.T) {
	for _, skip := range []float64{0, .25, 1} {
		l := must.Get(New(Config{Writer: io.Discard, Skip: skip}))(t)
		const n = 20_000
		wanted := 0
		for range n {
			if l.Wants(http.StatusOK) {
				wanted++
			}
			if !l.Wants(http.StatusNotFound) || !l.Wants(499) || !l.Wants(http.StatusBadGateway) {
				t.Fatal("an error has no line")
			}
		}
		// Six standard deviations at most: 0.5·√20000 each.
		if off := math.Abs(float64(wanted) - n*(1-skip)); off > 425 {
			t.Errorf("of %d requests with %v omitted, %d have a line", n, skip, wanted)
		}
	}
}

// Lost lines are logged once a minute, however many they are.
func TestLossesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		_ = r.Close()
		var log strings.Builder
		l := newLog(t, Config{Writer: w, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 * 60 {
			l.Add(1, full())
			l.flush()
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "access log lost lines"); n != 3 {
			t.Errorf("logged %d times in 3 minutes:\n%s", n, log.String())
		}
	})
}
