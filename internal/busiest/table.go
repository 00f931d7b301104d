package busiest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Table returns a line about all callers, and the rows as a table with a head, the others last.
// A narrow table has what shows who it is, cut so that it fits 140 columns as a rule. A column that
// no row has is left out.
func (a *Answer) Table(wide bool) (summary string, table [][]string) {
	seconds := max(a.To.Sub(a.From).Seconds(), 1)
	mega := func(n int64) string { return fmt.Sprintf("%.1fMi", float64(n)/(1<<20)) }
	cells := func(r *Row) []string {
		slowest := time.Duration(r.Slowest * float64(time.Second)).Round(time.Millisecond)
		return []string{
			r.User, r.Agent, r.Source, r.Verb, r.Resource, r.Server, fmt.Sprint(r.Requests), fmt.Sprintf("%.1f/s", float64(r.Requests)/seconds), mega(r.In), mega(r.Out),
			fmt.Sprint(r.Watches), slowest.String(), fmt.Sprint(r.Errors), fmt.Sprint(r.Refused),
		}
	}
	all := [][]string{strings.Fields("USER AGENT SOURCE VERB RESOURCE SERVER REQUESTS RATE IN OUT WATCHES SLOWEST ERRORS REFUSED")}
	for _, r := range append(slices.Clone(a.Rows), Row{Counts: a.Others}) {
		all = append(all, cells(&r))
	}
	table = make([][]string, len(all))
	for i, name := range all[0] {
		inNone := !slices.ContainsFunc(all[1:], func(r []string) bool { return r[i] != "" })
		if inNone || !wide && slices.Contains([]string{"SERVER", "RATE", "IN"}, name) {
			continue
		}
		for j, row := range all {
			const narrow = 32
			text := row[i]
			if !wide {
				text = strings.Replace(text, "system:serviceaccount:", "…", 1)
			}
			if !wide && len(text) > narrow {
				text = text[:narrow] + "…"
			}
			table[j] = append(table[j], text)
		}
	}
	table[len(table)-1][0] = "others"
	t := cells(&Row{Counts: a.Total})[6:]
	return fmt.Sprintf("%.0f s until %s UTC: %s requests (%s), %s in, %s out, %s watches open", seconds, a.To.UTC().Format(time.TimeOnly), t[0], t[1], t[2], t[3], t[4]), table
}
