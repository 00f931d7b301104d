package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestProbeURL(t *testing.T) {
	for group, want := range map[string]string{"": "https://[fd00::1]:443/api/v1", "a.example": "https://[fd00::1]:443/apis/a.example/v1"} {
		e := &registry.Entry{GroupVersion: schema.GroupVersion{Group: group, Version: "v1"}}
		check.Same(t, want, probeURL(e, "[fd00::1]:443").String(), "URL")
	}
}

// A backend that hangs has one message, wherever it hangs and whichever timer expires. One that
// cannot be dialled has another. All messages are bounded.
func TestExplain(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer s.Close()
	get := func(ctx context.Context, patience time.Duration) error {
		r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil))(t)
		_, err := (&http.Client{Timeout: patience}).Do(r)
		return err
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	const want = "failing or missing response from U: context deadline exceeded"
	for name, err := range map[string]error{
		"client": get(t.Context(), time.Millisecond), "context": get(short, time.Minute), "late": context.DeadlineExceeded,
		"read": &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded},
	} {
		_, got := explain(err, "U")
		check.Same(t, want, got, "%s", name)
	}
	_, got := explain(&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, "U")
	check.Same(t, "failing or missing response from U: dial tcp: i/o timeout", got, "dial")
	_, got = explain(errors.New(strings.Repeat("ü", 5000)), "U")
	check.Same(t, true, len(got) <= maxMessage+10 && utf8.ValidString(got), "a message of %d bytes", len(got))
}

// Whatever a backend answers, a probe ends, its message is limited text, and no goroutine is left.
func FuzzProbeAnswer(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nabc",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 \xff\xfe\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1/\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "\x00\x00\x00\x04\x00",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2*maxHead) + "\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	ca := pki.NewCA("ca")
	pair := ca.Issue(pki.Leaf{Names: []string{serverName}}).TLS()
	l := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}}))(f)
	p := New(Config{
		Table: func() latest.State[*registry.Entry] { return snapshot{} }, Report: func(registry.Report) {}, Dial: new(net.Dialer).DialContext,
		TLS: func(string, *registry.Backend) (*tls.Config, error) { return &tls.Config{RootCAs: ca.Pool()}, nil },
	})
	target := newTarget(p, key{&registry.Backend{ServerName: serverName, HTTP1: true}, l.Addr().String(), defaultInterval, false})
	probed := newClaim(target, &registry.Entry{GroupVersion: schema.GroupVersion{Group: "g", Version: "v1"}})
	answers := make(chan []byte, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write(<-answers)
			_ = c.Close()
		}
	}()
	f.Cleanup(func() { _ = l.Close() })
	before := runtime.NumGoroutine()
	f.Fuzz(func(t *testing.T, answer []byte) {
		answers <- answer
		o := (&round{target: target}).alone(t.Context(), probed, 0)
		closeConn(o.conn)
		if o.err != nil {
			_, m := explain(o.err, probed.at.String())
			check.Same(t, true, len(m) <= maxMessage+10 && utf8.ValidString(m), "message of %d bytes: %q", len(m), m)
		} else if !bytes.Contains(answer, []byte(" 2")) {
			t.Errorf("passed with %q", answer)
		}
		must.Soon(t, 10*time.Second, "at most 20 more goroutines", func() bool { return runtime.NumGoroutine() <= before+20 })
	})
}

// A server's own words are a part of the cause, bounded and in one printable line.
func TestSentence(t *testing.T) {
	for body, want := range map[string]string{
		`{"kind":"Status","message":"forbidden: \u001b[31mno\nrole"}`:             `: forbidden: \u001b[31mno role`,
		`{"kind":"Status","message":"` + strings.Repeat("a", 2*maxMessage) + `"}`: ": " + strings.Repeat("a", maxMessage) + "…",
		`{"kind":"Status"}`: "", `{"message":"x"}`: "", "forbidden": "", "": "",
		`{"kind":"Status","message":"` + strings.Repeat("a", maxHead) + `"}`: "",
	} {
		check.Same(t, want, sentence(strings.NewReader(body)), "%.50s", body)
	}
}

// What a URL serves is told apart by the names of its resources, in any order. Endpoints of a Service are not compared.
func TestServes(t *testing.T) {
	made := func(urls string) *claim {
		return &claim{target: &target{key: key{backend: &registry.Backend{URLs: urls}}}}
	}
	serves := func(urls, document string) string {
		c := made(urls)
		c.read(strings.NewReader(document))
		if s := c.serves.Load(); s != nil {
			return s.text
		}
		return ""
	}
	synctest.Test(t, func(t *testing.T) {
		c, p := made("u"), &Prober{}
		c.read(strings.NewReader(`{"resources":[{"name":"a"}]}`))
		p.index.Store(&map[string]peers{"v1.x": {"u": c}})
		check.Same(t, "", p.Serves("v1.x", "u"), "just seen")
		time.Sleep(settled)
		c.read(strings.NewReader(`{"resources":[{"name":"a"}]}`))
		check.Same(t, true, strings.HasPrefix(p.Serves("v1.x", "u"), "1 resources ("), "the same for a minute")
		c.read(strings.NewReader(`{"resources":[{"name":"b"}]}`))
		check.Same(t, "", p.Serves("v1.x", "u"), "changed, as while replicas are upgraded")
	})
	const one, two = `{"resources":[{"name":"a"},{"name":"b"}]}`, `{"resources":[{"name":"b","kind":"B"},{"name":"a"}]}`
	check.Same(t, serves("u", one), serves("u", two), "the same resources")
	check.Same(t, true, strings.HasPrefix(serves("u", one), "2 resources ("), "%s", serves("u", one))
	for _, other := range []string{`{"resources":[{"name":"a"},{"name":"c"}]}`, `{"resources":[{"name":"a"}]}`, `{}`} {
		check.Same(t, false, serves("u", one) == serves("u", other), "%s is the same as %s", one, other)
	}
	check.Same(t, "", serves("u", "<html>"), "no document")
	check.Same(t, "", serves("", one), "a Service")
}

func (w *world) table() latest.State[*registry.Entry] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return snapshot{w.entries, w.superseded}
}

// snapshot is a table.
type snapshot struct {
	entries    []*registry.Entry
	superseded <-chan struct{}
}

func (s snapshot) Servers() []*registry.Entry  { return s.entries }
func (s snapshot) Superseded() <-chan struct{} { return s.superseded }

func TestObserveDoesNotAllocate(t *testing.T) {
	p := &Prober{}
	c := &claim{}
	p.index.Store(&map[string]peers{"v1.example.com": {at: c}})
	check.Same(t, 0, testing.AllocsPerRun(100, func() { p.Observe("v1.example.com", at, time.Millisecond) }), "allocations")
	check.Same(t, true, c.latency.count.Load() > 0, "observed")
}

func TestSlowNeedsTimeAndWitnesses(t *testing.T) {
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	type step struct {
		after time.Duration
		slow  bool
		want  bool // slow after the step
	}
	const s = time.Second
	for name, steps := range map[string][]step{
		"two witnesses, far apart": {{0, true, false}, {20 * s, true, false}, {21 * s, true, true}},
		"many, but too soon":       {{0, true, false}, {1 * s, true, false}, {2 * s, true, false}, {9 * s, true, false}, {10 * s, true, true}},
		"one that disagrees":       {{0, true, false}, {5 * s, true, false}, {9 * s, false, false}, {11 * s, true, false}, {12 * s, true, false}, {20 * s, true, false}},
		"and back, for as long":    {{0, true, false}, {5 * s, true, false}, {10 * s, true, true}, {11 * s, false, true}, {12 * s, false, true}, {21 * s, false, false}},
		"and back": {
			{0, true, false}, {5 * s, true, false}, {10 * s, true, true}, {11 * s, false, true}, {12 * s, true, true},
			{13 * s, false, true}, {18 * s, false, true}, {23 * s, false, false},
		},
	} {
		var l latency
		for i, step := range steps {
			was := l.slow.Load()
			changed := l.update(start.Add(step.after), step.slow, 0)
			slow := l.slow.Load()
			check.Same(t, [2]bool{step.want, slow != was}, [2]bool{slow, changed}, "%s, step %d: slow, and changed", name, i)
		}
	}
}

// answering returns a claim whose latencies were last these; zero means none.
func answering(live, probe time.Duration, newLive, newProbe bool) *claim {
	c := &claim{}
	c.latency.live, c.latency.probe, c.latency.newLive, c.latency.newProbe = live, probe, newLive, newProbe
	return c
}

// Of an endpoint with live traffic like its peers', probes say nothing.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		of             *claim
		value, typical time.Duration
	}{
		{answering(9, 1, true, true), 9, 4},
		{answering(9, 1, false, true), 0, 0},
		{answering(0, 1, false, true), 1, 2},
		{answering(0, 1, false, false), 0, 0},
	} {
		l := &tt.of.latency
		value, typical := compare(l, sorted(0, 4, 4, l.live), sorted(0, 2, 2, l.probe))
		check.Same(t, [2]time.Duration{tt.value, tt.typical}, [2]time.Duration{value, typical}, "of %s and %s", tt.of.latency.live, tt.of.latency.probe)
	}
}

// The median of its peers excludes the endpoint itself, and those without data.
func TestMedianOfOthers(t *testing.T) {
	for _, tt := range []struct {
		first  time.Duration
		others []time.Duration
		want   time.Duration
	}{
		{100, nil, 0},
		{100, []time.Duration{0}, 0},
		{100, []time.Duration{0, 20}, 20},
		{100, []time.Duration{20, 30}, 20},
		{1, []time.Duration{20, 30, 40}, 30},
		{30, []time.Duration{0, 0, 30, 40}, 30},
		{20, []time.Duration{20, 20}, 20},
	} {
		all := append([]time.Duration{0, tt.first}, tt.others...)
		check.Same(t, tt.want, medianOfOthers(sorted(all...), tt.first), "%d among %d", tt.first, tt.others)
	}
}
