//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// mib is a MiB.
const mib = 1 << 20

// memory is what the process holds in RAM now, and at most since forgetPeak.
func (d *door) memory(t *testing.T) (now, peak int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Process.Pid))
	must.Do(t, err)
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		switch f[0] {
		case "VmRSS:":
			now, err = strconv.ParseInt(f[1], 10, 64)
		case "VmHWM:":
			peak, err = strconv.ParseInt(f[1], 10, 64)
		}
		must.Do(t, err)
	}
	return now << 10, peak << 10
}

// forgetPeak has memory's peak begin anew.
func (d *door) forgetPeak(t *testing.T) {
	t.Helper()
	must.Do(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.Process.Pid), []byte("5"), 0))
}

// cpu is the processor time that the process has used.
func (d *door) cpu(t *testing.T) time.Duration {
	t.Helper()
	_, rest, _ := strings.Cut(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Process.Pid)))(t)), ") ")
	f := strings.Fields(rest)
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
}

// descriptors is how many files and sockets the process has open.
func (d *door) descriptors(t *testing.T) int {
	t.Helper()
	return len(must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.Process.Pid)))(t))
}

// innocents are users who ask steadily while others attack. They do not wait for earlier answers: a
// stall is felt by all who ask meanwhile.
type innocents struct {
	client *http.Client
	url    string
}

func (d *door) innocents() *innocents {
	return &innocents{client(d.w.as("innocent"), "h2"), "https://" + d.Front + others + "/widget-001"}
}

// window is what they see who ask every 4 ms for a second.
func (i *innocents) window(t *testing.T) []volley.Shot {
	t.Helper()
	get := func(int) (string, string, string) { return http.MethodGet, i.url, "" }
	l := (&volley.Load{Every: 4 * time.Millisecond, Clients: []*http.Client{i.client}, Make: get}).Start(t)
	suite.Pause(t, time.Second)
	return l.Stop()
}

// once is what is wrong with an answer to them.
func (i *innocents) once(ctx context.Context) error {
	return ask.Serves(ctx, i.client, i.url)
}

// compared are windows with and without an attack, which took turns: what the machine does beside
// falls on both alike.
type compared struct {
	calm, attacked []time.Duration // 99th percentiles
	wrong          map[string]int
	cpu            time.Duration // of the process, in the attacked windows
	grown, peak    int64         // memory: what was held more afterwards, and at most meanwhile
}

const (
	windows = 5          // of each kind; all count
	bound   = othersTake // how much more the innocent may feel. A difference: their backend's own time would make any ratio look well
)

// begin notes how things are before an attack.
func (d *door) begin(t *testing.T) *comparison {
	t.Helper()
	c := &comparison{d: d, innocents: d.innocents(), compared: compared{wrong: map[string]int{}}}
	c.innocents.window(t) // connections, caches
	c.before, _ = d.memory(t)
	d.forgetPeak(t)
	return c
}

// comparison is one that is being made.
type comparison struct {
	compared
	d         *door
	innocents *innocents
	before    int64 // memory
}

func (c *comparison) calmWindow(t *testing.T) {
	t.Helper()
	c.calm = append(c.calm, c.count(c.innocents.window(t)))
}

func (c *comparison) attackedWindow(t *testing.T) {
	t.Helper()
	used := c.d.cpu(t)
	c.attacked = append(c.attacked, c.count(c.innocents.window(t)))
	c.cpu += c.d.cpu(t) - used
}

// end notes what is different now.
func (c *comparison) end(t *testing.T) *compared {
	t.Helper()
	after, peak := c.d.memory(t)
	c.grown, c.peak = after-c.before, peak-c.before
	return &c.compared
}

// compare measures pairs of windows. attack runs until its context ends.
func (d *door) compare(t *testing.T, attack func(context.Context)) *compared {
	t.Helper()
	c := d.begin(t)
	for range windows {
		c.calmWindow(t)
		ctx, cancel := context.WithCancel(t.Context())
		var attackers sync.WaitGroup
		attackers.Go(func() { attack(ctx) })
		suite.Pause(t, 100*time.Millisecond) // until it is in full swing
		c.attackedWindow(t)
		cancel()
		attackers.Wait()
	}
	return c.end(t)
}

// endure measures before something that goes on by itself once it has begun, and meanwhile.
func (d *door) endure(t *testing.T, start func()) *compared {
	t.Helper()
	c := d.begin(t)
	for range windows {
		c.calmWindow(t)
	}
	start()
	for range windows {
		c.attackedWindow(t)
	}
	return c.end(t)
}

// count notes what was wrong in a window, and returns its 99th percentile.
func (c *compared) count(window []volley.Shot) time.Duration {
	for _, s := range window {
		if s.Code != http.StatusOK || s.Err != nil {
			c.wrong[fmt.Sprint(s.Code, " ", s.Err, " ", s.Text)]++
		}
	}
	return volley.Percentile(window, 0.99)
}

func (c *compared) more() time.Duration { return median(c.attacked) - median(c.calm) }

func median(list []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

// String is a line of docs/evidence/attacks.md.
func (c *compared) String() string {
	return fmt.Sprintf("others' p99 %s calm, %s attacked (%.2fx, %+d ms, %d windows), cpu %.0f%%, memory +%d MiB at most, %+d MiB after",
		median(c.calm).Round(100*time.Microsecond), median(c.attacked).Round(100*time.Microsecond), float64(median(c.attacked))/float64(median(c.calm)), c.more().Milliseconds(), len(c.attacked),
		100*c.cpu.Seconds()/float64(len(c.attacked)), c.peak/mib, c.grown/mib)
}

// held fails when others have waited for longer than bound, or got a wrong answer, or when more
// memory was taken than limit.
func (c *compared) held(t *testing.T, limit int64) {
	t.Helper()
	if c.more() > bound {
		t.Errorf("others' p99 %v calm and %v attacked: %s more", c.calm, c.attacked, c.more())
	}
	if len(c.wrong) > 0 {
		t.Errorf("others were answered %v", c.wrong)
	}
	if c.peak > limit {
		t.Errorf("%d MiB were taken, the limit is %d", c.peak/mib, limit/mib)
	}
}
