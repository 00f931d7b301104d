//go:build e2e

package incidents

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The time of a history. Alerts wait for minutes, and a test does not: while nothing changes, half
// a second is recorded as half a minute, the usual interval of scrapes. While something changes, a
// tick is five seconds of both times, so that what lasts for seconds is not recorded as minutes.
const (
	tick         = 5 * time.Second
	settledTicks = 6
	settledEvery = 500 * time.Millisecond
)

// history is what a Prometheus would have scraped from the Fairleads of a row.
type history struct {
	targets []target
	judged  map[string]bool // metrics that the rules use

	mu       sync.Mutex // guards the fields below
	changing bool
	now      int                       // in ticks
	samples  map[string]map[int]string // :: series and tick
}

type target struct {
	instance, url string
	client        *http.Client
}

// watch scrapes Fairleads as Prometheus does, with a token, until the test ends.
func (w *world) watch(t *testing.T, fronts ...*cluster.Front) *history {
	t.Helper()
	h := &history{judged: map[string]bool{}, samples: map[string]map[int]string{}}
	for _, name := range regexp.MustCompile(`\b(fairlead|aggregator)_\w+`).FindAllString(w.rules, -1) {
		h.judged[name] = true
	}
	for _, f := range fronts {
		h.targets = append(h.targets, target{f.Part.Name(), f.Admin.URL + "/metrics", suite.Client(t, f.Admin, w.scrapes)})
	}
	must.Run(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			h.mu.Lock()
			every, ticks := settledEvery, settledTicks
			if h.changing {
				every, ticks = tick, 1
			}
			h.mu.Unlock()
			next := time.After(every)
			for _, one := range h.targets {
				h.scrape(ctx, one)
			}
			h.mu.Lock()
			h.now += ticks
			h.mu.Unlock()
			select {
			case <-next:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	})
	return h
}

// changes says whether something changes from now on.
func (h *history) changes(is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changing = is
}

// at returns the history's time.
func (h *history) at() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Duration(h.now) * tick
}

// last waits until the history is longer by d, and returns the time of the last scrape that has
// ended: the next one may see what happens then.
func (h *history) last(t *testing.T, d time.Duration) time.Duration {
	t.Helper()
	until := h.at() + d
	suite.Eventually(t, d, "recorded", func() (bool, string) { return h.at() >= until, h.at().String() })
	return until - settledTicks*tick
}

var sample = regexp.MustCompile(`^((?:fairlead|aggregator)_\w+)(?:\{(.*)\})? (\S+)`)

// scrape adds what a target answers. One that does not is down, and its series end.
func (h *history) scrape(ctx context.Context, one target) {
	patience, cancel := context.WithTimeout(ctx, 10*time.Second) // as Prometheus'
	text, err := ask.Get(patience, one.client, one.url)
	cancel()
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	of, seen := fmt.Sprintf(`job="fairlead",instance=%q`, one.instance), map[string]bool{}
	put := func(name, labels, value string) {
		series := name + "{" + strings.TrimSuffix(of+","+labels, ",") + "}"
		if h.samples[series] == nil {
			h.samples[series] = map[int]string{}
		}
		h.samples[series][h.now], seen[series] = value, true
	}
	put("up", "", map[bool]string{true: "1", false: "0"}[err == nil])
	for line := range strings.Lines(text) {
		m := sample.FindStringSubmatch(line)
		if m == nil || !h.judged[m[1]] {
			continue
		}
		if strings.HasSuffix(m[1], "_timestamp_seconds") { // the history begins at 0
			seconds, _ := strconv.ParseFloat(m[3], 64)
			m[3] = strconv.FormatFloat(seconds-float64(time.Now().Unix())+(time.Duration(h.now)*tick).Seconds(), 'f', 0, 64)
		}
		put(m[1], m[2], m[3])
	}
	for series, values := range h.samples {
		if strings.Contains(series, of) && !seen[series] {
			values[h.now] = "stale"
		}
	}
}

// series writes the history for promtool.
func (h *history) series() (all []map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, values := range h.samples {
		var b strings.Builder
		last := ""
		for i := range h.now {
			v, scraped := values[i]
			if !scraped || v == "stale" && last == "stale" {
				v = "_"
			} else {
				last = v
			}
			b.WriteString(v + " ")
		}
		all = append(all, map[string]string{"series": name, "values": b.String()})
	}
	return all
}

// alert has the labels of one that fires by which Alertmanager inhibits others.
type alert struct{ name, check, severity string }

var (
	result = regexp.MustCompile(`got:(.*)`)
	labels = regexp.MustCompile(`\{alertname="(\w+)", (?:check="([\w-]+)", )?severity="(\w+)"\}`)
)

// firing returns the alerts that fire at a moment or, since a longer time, have fired until then.
func (w *world) firing(t *testing.T, h *history, at, since time.Duration) (all []alert) {
	t.Helper()
	dir := filepath.Join(w.dir, "history-"+strings.ReplaceAll(t.Name(), "/", "-")) // kept if the test fails
	must.Do(t, os.MkdirAll(dir, 0o700))
	expr := `group by (alertname, check, severity) (ALERTS{alertstate="firing"})`
	if since > 0 {
		expr = fmt.Sprintf(`group by (alertname, check, severity) (last_over_time(ALERTS{alertstate="firing"}[%ds]))`, int(since.Seconds()))
	}
	suite.Put(t, filepath.Join(dir, "rules.yaml"), w.rules)
	suite.Put(t, filepath.Join(dir, "tests.yaml"), must.Get(yaml.Marshal(map[string]any{
		"rule_files": []string{"rules.yaml"}, "evaluation_interval": "15s",
		"tests": []any{map[string]any{
			"interval": tick.String(), "input_series": h.series(),
			"promql_expr_test": []any{map[string]any{ // promtool prints what differs from the expected
				"expr": expr, "eval_time": fmt.Sprintf("%ds", int(at.Seconds())), "exp_samples": []any{map[string]any{"labels": `{alertname="None"}`, "value": 0}},
			}},
		}},
	}))(t))
	cmd := exec.CommandContext(t.Context(), "promtool", "test", "rules", filepath.Join(dir, "tests.yaml"))
	a := suite.Run(t, cmd, "")
	got := result.FindStringSubmatch(a.Out + a.Errs)
	must.Be(t, a.Code == 1 && got != nil, "promtool: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	for _, m := range labels.FindAllStringSubmatch(got[1], -1) {
		all = append(all, alert{m[1], m[2], m[3]})
	}
	return all
}

// inhibition is a rule of Alertmanager.
type inhibition struct {
	Source []string `json:"source_matchers"`
	Target []string `json:"target_matchers"`
	Equal  []string `json:"equal"`
}

func inhibitions(t *testing.T) []inhibition {
	t.Helper()
	var config struct {
		Rules []inhibition `json:"inhibit_rules"`
	}
	data := must.Get(os.ReadFile("../../../deploy/components/monitoring/alertmanager.yaml"))(t)
	must.Do(t, yaml.Unmarshal(data, &config))
	return config.Rules
}

// told returns the names of the alerts that people are told of: those that no other one inhibits.
// Of the labels that must equal it compares those of an alert here: one row has one cause.
func (w *world) told(t *testing.T, firing []alert) (names []string) {
	t.Helper()
	label := func(a alert, name string) string {
		return map[string]string{"alertname": a.name, "check": a.check, "severity": a.severity}[name]
	}
	matches := func(a alert, matchers []string) bool {
		return !slices.ContainsFunc(matchers, func(m string) bool {
			parts := regexp.MustCompile(`^(\w+)(=~|!=|=)"(.*)"$`).FindStringSubmatch(m)
			must.Be(t, parts != nil, "matcher %s is not understood", m)
			value := label(a, parts[1])
			switch parts[2] {
			case "=~":
				return !regexp.MustCompile("^(?:" + parts[3] + ")$").MatchString(value)
			case "!=":
				return value == parts[3]
			}
			return value != parts[3]
		})
	}
	for _, a := range firing {
		inhibited := slices.ContainsFunc(w.inhibitions, func(i inhibition) bool {
			return matches(a, i.Target) && slices.ContainsFunc(firing, func(b alert) bool {
				unequal := slices.ContainsFunc(i.Equal, func(name string) bool { return label(a, name) != label(b, name) })
				return a != b && !unequal && matches(b, i.Source)
			})
		})
		if !inhibited && !slices.Contains(names, a.name) {
			names = append(names, a.name)
		}
	}
	slices.Sort(names)
	return names
}
