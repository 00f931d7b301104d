//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const (
	largest = 240 << 10 // the size of heads: a few KiB below the limit of both protocols
	dearer  = 4         // how many times the processor time of one plain field of the same size a head may take
	// heads are sent for one measurement; the least of rounds counts, of more if that is too dear:
	// a head takes 3 to 20 ms, and the collector comes by chance.
	heads, rounds, more = 5, 3, 12
	// sideBySide is the number of windows of each kind, calm and attacked in turn, and glance is
	// how long one takes: three heads of an attack.
	sideBySide, glance = 9, 150 * time.Millisecond
	pace               = 50 * time.Millisecond // the interval between an attack's heads, of all its sources: 4.8 MB/s
	// share is how many of the others' requests are answered in time, of those without the attack,
	// and late is how much later than their slowest one.
	share, late      = 0.8, 50 * time.Millisecond
	proportionMemory = 128 * mib // how much memory an attack may use
)

type attack struct {
	name string
	over string // the client's protocol, or the backend's
	// send sends it once, as a client of d's from some address, and returns the status; 0 if the connection was ended.
	send func(c *visitor) int
	// plain is what it is compared with, and small only connects.
	plain, small func(c *visitor) int
}

// The cost of whatever clients and backends send is in proportion to its size, on the built binary,
// and others are served beside it.
func TestProportion(t *testing.T) {
	d := newWorld(t).open(t)
	all := d.attacks(t)
	// What needs no idle machine.
	t.Run("statuses", func(t *testing.T) {
		i := d.innocents()
		before, _ := memory(t, i.pid)
		forgetPeak(t, i.pid)
		for _, a := range all {
			t.Run(a.over+" "+a.name, func(t *testing.T) {
				v := d.visit(t, "127.0.0.1")
				defer v.leave()
				got := a.send(v)
				if t.Logf("answered %d", got); got == http.StatusInternalServerError {
					t.Error("a handler panicked")
				}
				if wrong := ask.Serves(t.Context(), i.client, i.url); wrong != nil {
					t.Errorf("others received %s", wrong)
				}
			})
		}
		if _, peak := memory(t, i.pid); peak-before > proportionMemory {
			t.Errorf("%d MiB were used", (peak-before)/mib)
		}
	})
	t.Run("cost", func(t *testing.T) {
		fmt.Println("| over | what | one plain field | this | |\n|---|---|---|---|---|")
		for _, a := range all {
			t.Run(a.over+" "+a.name, func(t *testing.T) { d.weighs(t, a) })
		}
	})
	t.Run("beside", func(t *testing.T) {
		fmt.Println("| what | sources | answered, of calm | slowest: calm | attacked | memory |\n|---|---|---|---|---|---|")
		ways := map[string][]func(*visitor) int{}
		for _, a := range all {
			ways[a.name] = append(ways[a.name], a.send)
		}
		for _, name := range slices.Sorted(maps.Keys(ways)) {
			t.Run(name, func(t *testing.T) { d.beside(t, name, ways[name]) })
		}
	})
}

// weighs measures the processor time of an attack and of a plain field.
func (d *door) weighs(t *testing.T, a attack) {
	plain, this := time.Hour, time.Hour
	for n := 0; n < rounds || n < more && this > dearer*plain; n++ {
		plain, this = min(plain, d.takes(t, a.small, a.plain)), min(this, d.takes(t, a.small, a.send))
	}
	fmt.Printf("| %s | %s | %s | %s | %.1fx |\n", a.over, a.name, plain.Round(time.Microsecond), this.Round(time.Microsecond), float64(this)/float64(plain))
	if this > dearer*plain {
		t.Errorf("it takes %v of processor time, and one plain field %v", this, plain)
	}
}

// takes returns the processor time for one head. Each comes over a connection of its own, because
// some end theirs, and handshakes are not what is measured.
func (d *door) takes(t *testing.T, small, send func(*visitor) int) time.Duration {
	var visitors []*visitor
	for range heads {
		v := d.visit(t, "127.0.0.1")
		defer v.leave()
		got := small(v)
		must.Be(t, got == http.StatusOK, "a usual request was answered with %d", got)
		visitors = append(visitors, v)
	}
	begun := processor(t, d.Process.Pid)
	for _, v := range visitors {
		send(v)
	}
	return (processor(t, d.Process.Pid) - begun) / heads
}

// processor returns the processor time of a process, in nanoseconds: /proc/PID/stat has only ticks.
func processor(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	for _, file := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)))(t) {
		text, _ := os.ReadFile(file) // a thread may have ended
		first, _, _ := strings.Cut(string(text), " ")
		n, _ := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(n)
	}
	return sum
}

// beside compares others' requests in windows without an attack, and with it from one and from
// sixteen sources. It takes the ways of an attack in turn: protocols, and where in an answer.
func (d *door) beside(t *testing.T, name string, ways []func(*visitor) int) {
	i := d.innocents()
	defer i.client.CloseIdleConnections()
	type seen struct {
		answered int
		slowest  time.Duration
		peak     int64
		visitors []*visitor
		sent     atomic.Int64 // heads, by the visitors in turn
	}
	all := map[int]*seen{0: {}, 1: {}, 16: {}} // by the number of sources
	wrong := map[string]int{}
	for sources, s := range all {
		for n := range sources {
			v := d.visit(t, fmt.Sprintf("127.0.0.%d", 1+n))
			defer v.leave()
			s.visitors = append(s.visitors, v)
		}
	}
	look := func(s *seen) {
		forgetPeak(t, i.pid)
		ctx, cancel := context.WithCancel(t.Context())
		var attackers sync.WaitGroup
		defer attackers.Wait()
		defer cancel()
		if len(s.visitors) > 0 {
			attackers.Go(func() {
				volley.Pace(ctx, pace, func(int) { // in turn: what all do at once would keep two cores busy
					n := int(s.sent.Add(1))
					v := s.visitors[n%len(s.visitors)]
					v.mu.Lock()
					defer v.mu.Unlock()
					ways[(n+n/len(s.visitors))%len(ways)](v)
				})
			})
		}
		l := (&volley.Load{Every: 4 * time.Millisecond, Clients: []*http.Client{i.client}, Make: func(int) (string, string, string) { return http.MethodGet, i.url, "" }}).Start(t)
		suite.Pause(t, glance)
		end := time.Now()
		for _, shot := range l.Stop() {
			if shot.Code != http.StatusOK || shot.Err != nil {
				wrong[fmt.Sprint(shot.Code, " ", shot.Err, " ", shot.Text)]++
			} else if shot.Began.Add(shot.Took).Before(end.Add(late)) {
				s.answered++
			}
			s.slowest = max(s.slowest, shot.Took)
		}
		_, peak := memory(t, i.pid)
		s.peak = max(s.peak, peak)
	}
	look(new(seen)) // fills pools and caches
	for range sideBySide {
		for _, sources := range []int{0, 1, 0, 16} {
			look(all[sources])
		}
	}
	calm := all[0]
	for _, sources := range []int{1, 16} {
		s := all[sources]
		ratio := 2 * float64(s.answered) / float64(max(calm.answered, 1)) // there are two calm windows for each
		fmt.Printf("| %s | %d | %.2f | %s | %s | %d MiB |\n", name, sources, ratio, calm.slowest.Round(time.Millisecond), s.slowest.Round(time.Millisecond), s.peak/mib)
		if ratio < share || s.slowest > calm.slowest+late || len(wrong) > 0 {
			t.Errorf("%d sources: others' requests were answered %.2f times as often, the slowest after %v and %v; wrong ones: %v", sources, ratio, calm.slowest, s.slowest, wrong)
		}
		if s.peak-calm.peak > proportionMemory {
			t.Errorf("%d sources: %d MiB were used", sources, (s.peak-calm.peak)/mib)
		}
	}
}

// attacks are the heads of clients over both protocols, and the answers of backends over both.
func (d *door) attacks(t *testing.T) (all []attack) {
	for _, over := range []string{"HTTP/2", "HTTP/1.1"} {
		of := func(s proportion.Shape, size int) func(*visitor) int {
			h := s.Of(target+"/widget-001", size)
			if over == "HTTP/2" {
				return func(v *visitor) int { return v.frames(&h) }
			}
			return func(v *visitor) int { return v.text(&h) }
		}
		for _, s := range proportion.Heads() {
			all = append(all, attack{s.Name, over, of(s, largest), of(proportion.Plain(), largest), of(proportion.Plain(), 1)})
		}
	}
	for over, annotations := range map[string]string{"backend over HTTP/2": "", "backend over HTTP/1.1": `fairlead.dev/http1: "true"`} {
		svc := "answers" + strconv.Itoa(len(over))
		s := extension.Start(t, extension.Config{
			GroupVersions: []string{svc + ".example.com/v1"}, CA: d.w.keys.Servers, Names: []string{svc + "-example-com.x.svc"}, RequestHeaderCA: d.w.keys.Fronts.Pool(), RejectWith: http.StatusUnauthorized,
			Record: -1, MaxStreams: 1000, Wrap: answering,
		})
		d.register(t, svc, s, annotations)
		d.serves(t, widgets(svc))
		of := func(kind string, i int) func(*visitor) int {
			return func(v *visitor) int { return v.asks(fmt.Sprintf("%s?%s=%d", widgets(svc), kind, i), kind == "refused") }
		}
		for _, kind := range []string{"answer", "interim", "trailers", "refused"} {
			for i, s := range proportion.Answers() {
				all = append(all, attack{"a backend's " + kind + ": " + s.Name, over, of(kind, i), of(kind, 0), of("limit", 1)})
			}
		}
	}
	return all
}

// answering answers with the head that the query names.
func answering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, number, ok := strings.Cut(r.URL.RawQuery, "=")
		i, err := strconv.Atoi(number)
		if !ok || err != nil || i >= len(proportion.Answers()) || kind == "limit" {
			next.ServeHTTP(w, r)
			return
		}
		h := proportion.Answers()[i].Of("", largest)
		if r.ProtoMajor == 1 {
			answerText(w, &h, kind)
			return
		}
		if kind == "trailers" {
			extension.WriteTrailers(w, r, h.Fields)
		}
		header := w.Header()
		for _, f := range h.Fields {
			header[f.Name] = append(header[f.Name], f.Value)
		}
		if kind == "interim" {
			w.WriteHeader(http.StatusEarlyHints)
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // net/http may still read the map of a stream that was reset
			}
			clear(header)
		}
		w.WriteHeader(http.StatusOK)
	})
}

// answerText answers over HTTP/1.1 as no library would.
func answerText(w http.ResponseWriter, h *proportion.Head, kind string) {
	var fields strings.Builder
	for _, f := range h.Fields {
		fmt.Fprintf(&fields, "%s: %s\r\n", f.Name, f.Value)
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	text := map[string]string{
		"answer":   ok + fields.String() + "Content-Length: 2\r\n\r\nok",
		"interim":  "HTTP/1.1 103 Early Hints\r\n" + fields.String() + "\r\n" + ok + "Content-Length: 2\r\n\r\nok",
		"trailers": ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + fields.String() + "\r\n",
		"refused":  "HTTP/1.1 403 Forbidden\r\n" + fields.String() + "Content-Length: 2\r\n\r\nno",
	}[kind]
	_, _ = io.WriteString(conn, text)
}
