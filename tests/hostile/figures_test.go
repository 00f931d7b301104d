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

const mib = 1 << 20

// memory returns the process's resident memory: current, and peak since forgetPeak.
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

// forgetPeak resets memory's peak.
func (d *door) forgetPeak(t *testing.T) {
	t.Helper()
	must.Do(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.Process.Pid), []byte("5"), 0))
}

// cpu returns the processor time that the process has used.
func (d *door) cpu(t *testing.T) time.Duration {
	t.Helper()
	_, rest, _ := strings.Cut(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Process.Pid)))(t)), ") ")
	f := strings.Fields(rest)
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go supports
}

// descriptors returns how many files and sockets the process has open.
func (d *door) descriptors(t *testing.T) int {
	t.Helper()
	return len(must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.Process.Pid)))(t))
}

// innocents are users with steady requests during attacks. They do not wait for earlier answers, so
// a stall affects all requests sent meanwhile.
type innocents struct {
	client *http.Client
	url    string
}

func (d *door) innocents() *innocents {
	return &innocents{client(d.w.as("innocent"), "h2"), "https://" + d.Front + others + "/widget-001"}
}

// window returns the results of a second with a request every 4 ms.
func (i *innocents) window(t *testing.T) []volley.Shot {
	t.Helper()
	get := func(int) (string, string, string) { return http.MethodGet, i.url, "" }
	l := (&volley.Load{Every: 4 * time.Millisecond, Clients: []*http.Client{i.client}, Make: get}).Start(t)
	suite.Pause(t, time.Second)
	return l.Stop()
}

// once sends one request, and returns what is wrong with its answer.
func (i *innocents) once(ctx context.Context) error {
	return ask.Serves(ctx, i.client, i.url)
}

// compared are alternating windows with and without an attack, so that other load on the machine
// affects both alike.
type compared struct {
	calm, attacked []time.Duration // 99th percentiles
	wrong          map[string]int
	cpu            time.Duration // of the process, in the attacked windows
	grown, peak    int64         // memory: growth afterwards, and peak meanwhile
}

const (
	windows = 5          // of each kind; all count
	bound   = othersTake // how much slower the innocents' p99 may be. A difference: their backend's delay would hide any ratio
)

// begin records the state before an attack.
func (d *door) begin(t *testing.T) *comparison {
	t.Helper()
	c := &comparison{d: d, innocents: d.innocents(), compared: compared{wrong: map[string]int{}}}
	c.innocents.window(t) // fills connection pools and caches
	c.before, _ = d.memory(t)
	d.forgetPeak(t)
	return c
}

// comparison is a running measurement.
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

// end records the differences.
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
		suite.Pause(t, 100*time.Millisecond) // until the attack has started
		c.attackedWindow(t)
		cancel()
		attackers.Wait()
	}
	return c.end(t)
}

// endure measures before and during something that continues by itself once started.
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

// count records the wrong answers of a window, and returns its 99th percentile.
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

// held fails if others waited longer than bound or received a wrong answer, or if more memory than
// limit was used.
func (c *compared) held(t *testing.T, limit int64) {
	t.Helper()
	if c.more() > bound {
		t.Errorf("others' p99: %v without and %v with the attack, %s more", c.calm, c.attacked, c.more())
	}
	if len(c.wrong) > 0 {
		t.Errorf("others received %v", c.wrong)
	}
	if c.peak > limit {
		t.Errorf("%d MiB were used, the limit is %d", c.peak/mib, limit/mib)
	}
}
