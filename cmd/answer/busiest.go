package answer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/proxy/busiest"
)

// Busiest returns the busiest callers as a line about all of them, and a table with its head first
// and the others last. A narrow table has what shows who it is, cut to fit a window of 140 columns
// as a rule. A column that no row has is left out.
func Busiest(a *busiest.Answer, wide bool) (summary string, table [][]string) {
	seconds := max(a.To.Sub(a.From).Seconds(), 1)
	cells := func(r *busiest.Row) []string {
		return []string{
			r.User, r.Agent, r.Source, r.Verb, r.Resource, r.Server, strconv.FormatInt(r.Requests, 10), Rate(float64(r.Requests) / seconds), size(r.In), size(r.Out),
			strconv.FormatInt(r.Watches, 10), Latency(r.Slowest), strconv.FormatInt(r.Errors, 10), strconv.FormatInt(r.Refused, 10),
		}
	}
	all := [][]string{strings.Fields("USER AGENT SOURCE VERB RESOURCE SERVER REQUESTS RATE IN OUT WATCHES SLOWEST ERRORS REFUSED")}
	for _, r := range append(slices.Clone(a.Rows), busiest.Row{Counts: a.Others}) {
		all = append(all, cells(&r))
	}
	table = make([][]string, len(all))
	for i, name := range all[0] {
		inNone := !slices.ContainsFunc(all[1:], func(r []string) bool { return r[i] != "" })
		if inNone || !wide && slices.Contains([]string{"SERVER", "RATE", "IN", "REFUSED"}, name) {
			continue
		}
		for j := range table {
			const narrow = 36
			text := all[j][i]
			if !wide {
				text = printable.Cut(strings.Replace(text, "system:serviceaccount:", "…", 1), narrow)
			}
			table[j] = append(table[j], text)
		}
	}
	table[len(table)-1][0] = "others"
	t := cells(&busiest.Row{Counts: a.Total})[6:]
	return fmt.Sprintf("%.0f s until %s UTC: %s requests (%s), %s in, %s out, %s watches open", seconds, a.To.UTC().Format(time.TimeOnly), t[0], t[1], t[2], t[3], t[4]), table
}

// size formats a number of bytes.
func size(n int64) string {
	f, unit := float64(n), 0
	for ; f >= 1000 && unit < 4; unit++ {
		f /= 1024
	}
	return strconv.FormatFloat(f, 'f', min(unit, 1), 64) + []string{"", "Ki", "Mi", "Gi", "Ti"}[unit]
}
