//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	mib     = 1 << 20
	windows = 5 // of each kind; all count
	// maxStolen is how much the hypervisor may take of a window's two cores. A window that loses
	// more says nothing about Fairlead, and is measured once more.
	maxStolen = 20 * time.Millisecond
)

// memory returns a process's resident memory: current, and peak since forgetPeak.
func memory(t *testing.T, pid int) (now, peak int64) {
	t.Helper()
	for line := range strings.Lines(string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))) {
		switch f := strings.Fields(line); f[0] {
		case "VmRSS:":
			now = must.Get(strconv.ParseInt(f[1], 10, 64))(t)
		case "VmHWM:":
			peak = must.Get(strconv.ParseInt(f[1], 10, 64))(t)
		}
	}
	return now << 10, peak << 10
}

func forgetPeak(t *testing.T, pid int) {
	t.Helper()
	must.Do(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0))
}

// innocents are users with steady requests during attacks on the process. They do not wait for
// earlier answers, so a stall affects all requests sent meanwhile.
type innocents struct {
	pid    int
	client *http.Client
	url    string
}

// window returns the results of a second with a request every 4 ms.
func (i *innocents) window(t *testing.T) []volley.Shot {
	t.Helper()
	get := func(int) (string, string, string) { return http.MethodGet, i.url, "" }
	for again := true; ; again = false {
		before := stolen(t)
		l := (&volley.Load{Every: 4 * time.Millisecond, Clients: []*http.Client{i.client}, Make: get}).Start(t)
		suite.Pause(t, time.Second)
		if shots := l.Stop(); !again || stolen(t)-before <= maxStolen {
			return shots
		}
	}
}

// stolen is how long cores were ready to run and did not, since the machine started (steal of proc_stat(5)).
func stolen(t *testing.T) time.Duration {
	t.Helper()
	all, _, _ := strings.Cut(string(must.Get(os.ReadFile("/proc/stat"))(t)), "\n")
	return time.Duration(must.Get(strconv.Atoi(strings.Fields(all)[8]))(t)) * 10 * time.Millisecond // USER_HZ is 100
}

// compared are alternating windows with and without an attack, so that other load on the machine affects both alike.
type compared struct {
	calm, attacked []time.Duration // a quantile of each window
	wrong          map[string]int
	peak           int64 // memory: the largest increase
}

// compare measures a quantile of pairs of windows. attack runs until its context ends.
func (i *innocents) compare(t *testing.T, quantile float64, attack func(context.Context)) *compared {
	t.Helper()
	c := &compared{wrong: map[string]int{}}
	measure := func() time.Duration {
		shots := i.window(t)
		for _, s := range shots {
			if s.Code != http.StatusOK || s.Err != nil {
				c.wrong[fmt.Sprint(s.Code, " ", s.Err, " ", s.Text)]++
			}
		}
		return volley.Percentile(shots, quantile)
	}
	i.window(t) // fills connection pools and caches
	before, _ := memory(t, i.pid)
	forgetPeak(t, i.pid)
	for range windows {
		c.calm = append(c.calm, measure())
		ctx, cancel := context.WithCancel(t.Context())
		var attackers sync.WaitGroup
		attackers.Go(func() { attack(ctx) })
		suite.Pause(t, 100*time.Millisecond) // until the attack has started
		c.attacked = append(c.attacked, measure())
		cancel()
		attackers.Wait()
	}
	_, peak := memory(t, i.pid)
	c.peak = peak - before
	return c
}

// held fails if others waited longer than bound, of what all windows come to, or received a wrong answer, or if more
// memory than limit was used. What it logs is a line of docs/evidence/attacks.md. The bound is of a difference: their
// backend's delay would hide any ratio.
func (c *compared) held(t *testing.T, of func([]time.Duration) time.Duration, bound time.Duration, limit int64) {
	t.Helper()
	calm, attacked := of(c.calm), of(c.attacked)
	t.Logf("others %s calm, %s attacked (%.2fx, %+d ms), memory +%d MiB", calm.Round(100*time.Microsecond), attacked.Round(100*time.Microsecond),
		float64(attacked)/float64(calm), (attacked - calm).Milliseconds(), c.peak/mib)
	check.Same(t, true, attacked-calm <= bound, "others took %v without and %v with the attack", c.calm, c.attacked)
	check.Same(t, 0, len(c.wrong), "what others received wrong: %v", c.wrong)
	check.Same(t, true, c.peak <= limit, "%d MiB were used, the limit is %d", c.peak/mib, limit/mib)
}

func median(list []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}
