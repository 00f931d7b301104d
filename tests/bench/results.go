package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

// sample is one measurement of one peer. Fields that a scenario does not measure are zero.
type sample struct {
	CPU   float64 // µs of processor time per request
	Rate  float64 // requests per second
	P50   float64 // latency, ms
	P99   float64 // latency, ms
	Watch float64 // KB for each
	Last  float64 // ms from an event until the last watch has it
	Flow  float64 // MB of bodies per second

	Available float64 // seconds from the start until all APIServices were
	Share     float64 // % of one processor
	Wakes     float64 // of all threads, per second
	Resident  float64 // MB
}

// newSample is what a load was between two moments, in which the peer needed cpu.
func newSample(before, after load.Snapshot, cpu time.Duration) (sample, error) {
	n, took := float64(after.Done-before.Done), after.Took
	if faults := after.Faults - before.Faults; n == 0 || faults > 0 {
		return sample{}, fmt.Errorf("%.0f requests were answered, %d failed", n, faults)
	}
	s := sample{Rate: n / after.At.Sub(before.At).Seconds(), CPU: float64(cpu.Nanoseconds()) / 1e3 / n}
	if len(took) > 0 {
		s.P50, s.P99 = millis(took[len(took)/2]), millis(took[len(took)*99/100])
	}
	return s, nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

type results []*series

type series struct {
	scenario, peer string
	samples        []sample // by round; an empty one does not count
}

// of returns a peer's series. It is empty if nothing was added.
func (r *results) of(scenario, peer string) *series {
	i := slices.IndexFunc(*r, func(s *series) bool { return s.scenario == scenario && s.peer == peer })
	if i < 0 {
		i = len(*r)
		*r = append(*r, &series{scenario: scenario, peer: peer})
	}
	return (*r)[i]
}

func (r *results) add(scenario, peer string, s sample) {
	of := r.of(scenario, peer)
	of.samples = append(of.samples, s)
}

// spread is the least, the middle and the largest of several figures.
type spread struct{ least, middle, most float64 }

func newSpread(v []float64) spread {
	if len(v) == 0 {
		return spread{}
	}
	v = slices.Sorted(slices.Values(v))
	return spread{v[0], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1]}
}

func (s *series) spread(of func(sample) float64) spread {
	return within(of, func(v []float64) float64 { return v[0] }, s)
}

// ratio is Fairlead's figure divided by a peer's.
func ratio(ours, theirs *series, of func(sample) float64) spread {
	return within(of, func(v []float64) float64 { return v[0] / v[1] }, ours, theirs)
}

const single = "alone" // the scenario without concurrent requests: its latencies show what a proxy itself adds

// added divides what Fairlead adds to direct's figure by what a peer adds.
func added(ours, theirs, direct *series, of func(sample) float64) spread {
	return within(of, func(v []float64) float64 { return (v[0] - v[2]) / (v[1] - v[2]) }, ours, theirs, direct)
}

// within computes a value from the figures of several within each round that has all of them.
func within(figure func(sample) float64, value func([]float64) float64, several ...*series) spread {
	var values []float64
	for round := range several[0].samples {
		var figures []float64
		for _, s := range several {
			if round < len(s.samples) && s.samples[round] != (sample{}) {
				figures = append(figures, figure(s.samples[round]))
			}
		}
		if len(figures) < len(several) {
			continue
		}
		if x := value(figures); !math.IsNaN(x) && !math.IsInf(x, 0) { // nobody's figure to divide by
			values = append(values, x)
		}
	}
	return newSpread(values)
}

// table returns all results as Markdown.
func (r *results) table() string {
	var b strings.Builder
	for i, s := range *r {
		same := func(other *series) bool { return other.scenario == s.scenario }
		if !slices.ContainsFunc((*r)[:i], same) { // the first of its scenario
			fmt.Fprintf(&b, "\n### %s\n\n", s.scenario)
			write(&b, slices.DeleteFunc(slices.Clone(*r), func(other *series) bool { return !same(other) }))
		}
	}
	return b.String()
}

// column is one figure of all peers.
type column struct {
	head  string
	ratio string // header of Fairlead's divided by the peer's; empty: the figure shows its own spread
	of    func(sample) float64
}

func columns() []column {
	return []column{
		{"CPU µs/request", "Fairlead's by it", func(s sample) float64 { return s.CPU }},
		{"requests/s", "", func(s sample) float64 { return s.Rate }},
		{"p50 ms", "p50 ratio", func(s sample) float64 { return s.P50 }},
		{"p99 ms", "p99 ratio", func(s sample) float64 { return s.P99 }},
		{"KB/watch", "ratio", func(s sample) float64 { return s.Watch }},
		{"last ms", "ratio of last", func(s sample) float64 { return s.Last }},
		{"MB/s", "Fairlead's by it", func(s sample) float64 { return s.Flow }},
		{"all available after s", "", func(s sample) float64 { return s.Available }},
		{"% of a processor", "", func(s sample) float64 { return s.Share }},
		{"wake-ups/s", "", func(s sample) float64 { return s.Wakes }},
		{"resident MB", "", func(s sample) float64 { return s.Resident }},
	}
}

// write writes the columns of a scenario in which some peer has a figure.
func write(b *strings.Builder, peers results) {
	ours := peers[max(0, slices.IndexFunc(peers, func(s *series) bool { return s.peer == fairlead }))] // else the first row
	rows := []string{"| peer |", "|---|"}
	for _, s := range peers {
		rows = append(rows, "| "+s.peer+" |")
	}
	add := func(head string, cell func(*series) string) {
		rows[0] += " " + head + " |"
		rows[1] += "---|"
		for i, s := range peers {
			rows[i+2] += " " + cell(s) + " |"
		}
	}
	for _, c := range columns() {
		switch {
		case !slices.ContainsFunc(peers, func(s *series) bool { return s.spread(c.of).most > 0 }):
		case c.ratio == "":
			add(c.head, func(s *series) string { return s.spread(c.of).String() })
		default:
			add(c.head, func(s *series) string { return number(s.spread(c.of).middle) })
			add(c.ratio, func(s *series) string {
				if s == ours {
					return ""
				}
				return ratio(ours, s, c.of).String()
			})
		}
	}
	if i := slices.IndexFunc(peers, func(s *series) bool { return s.peer == direct && s.scenario == single }); i >= 0 {
		for _, c := range columns()[2:4] { // latencies
			add("added to direct's "+strings.TrimSuffix(c.head, " ms")+", by its", func(s *series) string {
				if s == ours || s == peers[i] {
					return ""
				}
				return added(ours, s, peers[i], c.of).String()
			})
		}
	}
	b.WriteString(strings.Join(rows, "\n") + "\n")
}

func number(f float64) string {
	switch {
	case f == 0:
		return ""
	case f >= 1000:
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.3g", f)
}

func (s spread) String() string {
	if s.most == 0 {
		return ""
	}
	return fmt.Sprintf("%s–**%s**–%s", number(s.least), number(s.middle), number(s.most))
}
