package accesslog

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

func full() *Line {
	return &Line{
		Method: "GET", Path: `/apis/"quoted"`, Verb: "list", Proto: "HTTP/2.0", From: "192.0.2.1", Agent: "kubectl/v1", TLS: "TLS 1.3", End: "lost",
		User: "jane\n", Impersonator: "joe\\", APIService: "v1.x", AuditID: "id",
		Outcome: engine.Outcome{
			Status: 200, Sent: 17, Received: 3, Duration: 1500 * time.Microsecond, Placed: time.Microsecond, Wait: time.Millisecond,
			Endpoint: &engine.Endpoint{Name: "10.0.0.1:443"}, Retries: 1, New: true,
		},
	}
}

// A line is JSON. Empty fields are left out.
func TestLine(t *testing.T) {
	at := time.Date(2026, 11, 21, 9, 8, 7, 65_999_999, time.FixedZone("", 3600))
	for _, tc := range []struct {
		line *Line
		want map[string]any
	}{
		{full(), map[string]any{
			"method": "GET", "path": `/apis/"quoted"`, "verb": "list", "status": 200., "bytes": 17., "took": 1.5e6, "proto": "HTTP/2.0", "from": "192.0.2.1", "agent": "kubectl/v1",
			"user": "jane\n", "impersonator": "joe\\", "apiservice": "v1.x", "audit": "id", "in": 3., "waited": 1e3, "first": 1e6, "end": "lost",
			"endpoint": "10.0.0.1:443", "tries": 2., "new": true, "tls": "TLS 1.3",
		}},
		{&Line{Method: `\`}, map[string]any{"method": `\`, "path": "", "verb": "", "status": 0., "bytes": 0., "took": 0.}},
	} {
		tc.line.Ended = at
		b := tc.line.append(nil)
		var got map[string]any
		must.Do(t, json.Unmarshal(b, &got))
		maps.Copy(tc.want, map[string]any{"time": "2026-11-21T08:08:07.065Z", "level": "INFO", "msg": "request"})
		check.Same(t, tc.want, got, "line")
		check.Same(t, len(b)-1, bytes.IndexByte(b, '\n'), "end of %q", b)
	}
}

func TestMoment(t *testing.T) {
	for at := time.Date(2026, 12, 31, 23, 59, 58, 0, time.UTC); at.Year() == 2026 || at.Second() < 2; at = at.Add(333 * time.Millisecond) {
		check.Same(t, at.Format("2006-01-02T15:04:05.000Z"), string(moment(nil, at)), "moment")
	}
}

// Any value that a client sends makes one line of valid JSON, with that value or its beginning.
func FuzzField(f *testing.F) {
	for _, s := range []string{"plain", "\"},{\"", "\n\x00\x7f", "é\u2028\xff", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := append(field([]byte("{"), `"x":`, s), '}')
		check.Same(t, true, utf8.Valid(b) && !bytes.ContainsAny(b, "\n\r\x00"), "one line of UTF-8: %q", b)
		var got struct{ X string }
		must.Do(t, json.Unmarshal(b, &got))
		want := strings.Map(func(r rune) rune { return r }, s[:min(len(s), maxText)]) // invalid UTF-8 becomes U+FFFD
		check.Same(t, want, got.X, "value")
	})
}

// A line is bounded, whatever a client sends: a stranger's path of a megabyte would fill stripes, taps and the disk.
func TestLongTexts(t *testing.T) {
	l := full()
	l.Method, l.Path = strings.Repeat("m", 1<<20), strings.Repeat("\xff", 1<<20)
	l.Verb = l.Method
	var got map[string]any
	b := l.append(nil)
	must.Do(t, json.Unmarshal(b, &got))
	check.Same(t, any(strings.Repeat("m", maxText)), got["method"], "method")
	check.Within(t, 0, 9*maxText, len(b), "bytes")
}

// gate is a writer that blocks until it is opened, and counts lines and writes.
type gate struct {
	open          chan struct{}
	lines, writes atomic.Int64
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.lines.Add(int64(bytes.Count(p, []byte("\n"))))
	g.writes.Add(1)
	return len(p), nil
}

// Lines are gathered for a while. A full stripe is written early, and the remaining lines before Run returns.
func TestGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		close(g.open)
		l := New(Config{Writer: g})
		stop := must.Run(t, l.Run)
		for range 100 {
			l.Add(7, full())
		}
		synctest.Wait()
		check.Same(t, 0, g.lines.Load(), "lines written at once")
		time.Sleep(gather + time.Millisecond)
		check.Same(t, [2]int64{100, 1}, [2]int64{g.lines.Load(), g.writes.Load()}, "lines and writes")
		for range soon / 100 {
			l.Add(7, full())
		}
		synctest.Wait()
		check.Same(t, true, g.lines.Load() > 100, "a full stripe is written")
		l.Add(8, full())
		stop()
		check.Same(t, 100+soon/100+1, g.lines.Load(), "lines at the end")
	})
}

// A writer that hangs uses a limited buffer and loses lines, which are counted. No request waits for it.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, reg := &gate{open: make(chan struct{})}, prometheus.NewRegistry()
		l := New(Config{Writer: g, Sinks: metric.Sinks{Metrics: reg}})
		stop := must.Run(t, l.Run)
		const added = 50_000
		for range 2 {
			for range added {
				l.Add(3, full())
			}
			time.Sleep(time.Second)
		}
		lost := l.lost.Load()
		check.Same(t, true, lost > 0 && cap(l.stripes[3].buf) <= 2*maxStripe, "%d lost, %d bytes kept", lost, cap(l.stripes[3].buf))
		close(g.open)
		stop()
		check.Same(t, 2*added, g.lines.Load()+lost, "lines written or lost")
		metrics := must.Get(reg.Gather())(t)
		check.Same(t, float64(lost), metrics[0].Metric[0].Counter.GetValue(), "%s", metrics[0].GetName())
	})
}

func TestAddAllocates(t *testing.T) {
	l := New(Config{Writer: io.Discard})
	line := full()
	for range 1000 {
		l.Add(1, line)
	}
	l.flush()
	check.Same(t, 0, testing.AllocsPerRun(100, func() { l.Add(1, line) }), "allocations per line")
}

// A sample omits the configured share of lines, and no errors.
func TestSample(t *testing.T) {
	for _, skip := range []float64{0, .25, 1} {
		l := New(Config{Writer: io.Discard, Skip: skip})
		const n = 20_000
		wanted := 0
		for range n {
			if l.Wants(http.StatusOK) {
				wanted++
			}
			must.Be(t, l.Wants(http.StatusBadRequest) && l.Wants(499) && l.Wants(http.StatusBadGateway), "an error has no line")
		}
		// Six standard deviations at most: 0.5·√20000 each.
		check.Within(t, 0, 425, math.Abs(float64(wanted)-n*(1-skip)), "of %d requests with %v omitted, %d have a line: off by", n, skip, wanted)
	}
}

// Lines that cannot be written are counted, and logged once a minute, however many they are.
func TestLossesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		_ = r.Close()
		var log strings.Builder
		l := New(Config{Writer: w, Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		for range 3 * 60 {
			l.Add(1, full())
			l.Add(2, full())
			l.flush()
			time.Sleep(time.Second)
		}
		check.Same(t, 6*60, l.lost.Load(), "lines lost")
		check.Same(t, 3, strings.Count(log.String(), "access log lost lines"), "logs in 3 minutes")
	})
}

// Whatever is in a line, writing it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	var rows []proportion.Row
	for name, unit := range map[string]string{
		"plain": "a", "quotes": `"`, "backslashes": `\`, "control characters": "\x00", "broken UTF-8": "\xff", "half letters": "\xe2\x80", "letters beyond ASCII": "ä", "one odd letter": "",
	} {
		rows = append(rows, proportion.Row{Name: name, N: maxText / 16, Of: func(n int) (int, func() any) {
			text := strings.Repeat(unit+"a", n) + "\n"
			l := full()
			l.Path, l.User = text, text
			return 2 * len(text), func() any { return l.append(nil) }
		}})
	}
	proportion.Check(t, rows...)
}
