package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
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

func newSample(a, b gauge, took []time.Duration) (sample, error) {
	n := float64(b.Done - a.Done)
	if n == 0 {
		return sample{}, errors.New("no request was answered")
	}
	if faults := b.Faults - a.Faults; faults > 0 {
		return sample{}, fmt.Errorf("%d of %.0f requests failed", faults, n)
	}
	s := sample{Rate: n / b.At.Sub(a.At).Seconds()}
	if cpu := b.cpu - a.cpu; cpu > 0 {
		s.CPU = float64(cpu.Nanoseconds()) / 1e3 / n
	}
	if len(took) > 0 {
		s.P50, s.P99 = millis(took[len(took)/2]), millis(took[len(took)*99/100])
	}
	return s, nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

type results struct {
	machine, options string
	tables           []*result
}

type result struct {
	scenario string
	peers    []*series
}

type series struct {
	peer    string
	samples []sample // by round; an empty one does not count
}

func (r *results) of(scenario, peer string) *series {
	i := slices.IndexFunc(r.tables, func(t *result) bool { return t.scenario == scenario })
	if i < 0 {
		i = len(r.tables)
		r.tables = append(r.tables, &result{scenario: scenario})
	}
	t := r.tables[i]
	for _, s := range t.peers {
		if s.peer == peer {
			return s
		}
	}
	s := &series{peer: peer}
	t.peers = append(t.peers, s)
	return s
}

func (r *results) add(scenario, peer string, round int, s sample) {
	of := r.of(scenario, peer)
	for len(of.samples) <= round {
		of.samples = append(of.samples, sample{})
	}
	of.samples[round] = s
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
	var v []float64
	for _, x := range s.samples {
		if x != (sample{}) {
			v = append(v, of(x))
		}
	}
	return newSpread(v)
}

// ratio is Fairlead's figure divided by a peer's, each within one round.
func ratio(ours, theirs *series, of func(sample) float64) spread {
	var v []float64
	for i := range min(len(ours.samples), len(theirs.samples)) {
		if x := of(theirs.samples[i]); x > 0 && ours.samples[i] != (sample{}) {
			v = append(v, of(ours.samples[i])/x)
		}
	}
	return newSpread(v)
}

// single is the scenario without concurrent requests: its latencies show what a proxy itself adds.
const single = "alone"

// added divides what Fairlead adds to direct's figure by what a peer adds, within each round.
func added(ours, theirs, direct *series, of func(sample) float64) spread {
	var v []float64
	for i := range min(len(ours.samples), len(theirs.samples), len(direct.samples)) {
		a, b, d := ours.samples[i], theirs.samples[i], direct.samples[i]
		if none := (sample{}); a != none && b != none && d != none {
			v = append(v, (of(a)-of(d))/(of(b)-of(d)))
		}
	}
	return newSpread(v)
}

// table returns all results as Markdown.
func (r *results) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %s. Ratios are Fairlead's by the peer's within a round. Least–median–most, or the median.\n", r.machine, r.options)
	for _, t := range r.tables {
		fmt.Fprintf(&b, "\n### %s\n\n", t.scenario)
		t.write(&b)
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
		{"p50 ms", "", func(s sample) float64 { return s.P50 }},
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

// write writes the columns in which some peer has a figure.
func (t *result) write(b *strings.Builder) {
	ours := t.peers[max(0, slices.IndexFunc(t.peers, func(s *series) bool { return s.peer == fairlead }))] // else the first row
	rows := []string{"| peer |", "|---|"}
	for _, s := range t.peers {
		rows = append(rows, "| "+s.peer+" |")
	}
	add := func(head string, cell func(*series) string) {
		rows[0] += " " + head + " |"
		rows[1] += "---|"
		for i, s := range t.peers {
			rows[i+2] += " " + cell(s) + " |"
		}
	}
	for _, c := range columns() {
		switch {
		case !slices.ContainsFunc(t.peers, func(s *series) bool { return s.spread(c.of).most > 0 }):
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
	if i := slices.IndexFunc(t.peers, func(s *series) bool { return s.peer == direct }); i >= 0 && t.scenario == single {
		for _, c := range columns()[2:4] { // latencies
			add("added to direct's "+strings.TrimSuffix(c.head, " ms")+", by its", func(s *series) string {
				if s == ours || s == t.peers[i] {
					return ""
				}
				return added(ours, s, t.peers[i], c.of).String()
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
