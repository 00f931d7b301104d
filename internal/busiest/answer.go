package busiest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Who says whose row it is, and what they do; in another view than by caller, one of both.
type Who struct {
	// User is the effective user. Source is the client's address, Agent its User-Agent.
	User   string `json:"user,omitempty"`
	Agent  string `json:"agent,omitempty"`
	Source string `json:"source,omitempty"`
	// Verb and Resource are what is asked for: pods, deployments.apps/scale, or a path. Server is
	// the APIService that answers, local or fairlead.
	Verb     string `json:"verb,omitempty"`
	Resource string `json:"resource,omitempty"`
	Server   string `json:"server,omitempty"`
}

// Counts are what was counted of requests when they ended.
type Counts struct {
	Requests int64   `json:"requests"` // have ended
	Errors   int64   `json:"errors"`   // of them, with 5xx
	Refused  int64   `json:"refused"`  // of them, with 401, 403 or 429
	In       int64   `json:"in"`       // bytes of requests' bodies
	Out      int64   `json:"out"`      // bytes of responses' bodies
	Slowest  float64 `json:"slowest"`  // seconds, without long-running ones
	Watches  int64   `json:"watches"`  // long-running requests and sessions that are open now
}

// Add adds others, or with the sign -1 subtracts them.
func (c *Counts) Add(o *Counts, sign int64) {
	c.Requests += sign * o.Requests
	c.Errors += sign * o.Errors
	c.Refused += sign * o.Refused
	c.In += sign * o.In
	c.Out += sign * o.Out
	c.Watches += sign * o.Watches
	c.Slowest = max(c.Slowest, o.Slowest)
}

// weight decides which rows are kept. A request weighs as much as 4 KiB, so that both who lists
// 40 MB once a minute and who gets one object a thousand times a second are heavy.
func (c *Counts) weight() int64 { return c.Requests<<12 + c.In + c.Out }

// Answer has the busiest callers of a window, or those of several replicas.
type Answer struct {
	// From and To are when the window begins and ends: requests count that ended between them.
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Total  Counts    `json:"total"`  // of all requests
	Others Counts    `json:"others"` // of those that have no row
	Rows   []Row     `json:"rows"`   // the busiest, in order
	// Missed is the weight that a row may lack, and that a caller without one has at most: bytes, and 4 KiB a request.
	Missed int64 `json:"missed"`
}

// Row is what one caller did, or a request that is counted as its.
type Row struct {
	Who
	Counts
	Token any `json:"-"` // stands for a user who is not known. It is comparable, or nil
	// Group and Subresource belong to the Resource of a request that is counted.
	Group, Subresource string `json:"-"`
}

// Ask returns all rows of a view in the last minute or hour, or nil if there is no such.
func (c *Callers) Ask(view, length string) *Answer {
	c.flush()
	at := slices.Index([]string{"caller", "user", "agent", "resource", "source"}, view)
	w := slices.Index([]string{"minute", "hour"}, length) // in windows
	if at < 0 || w < 0 {
		return nil
	}
	a, rows := &Answer{To: time.Now()}, map[string]*row{}
	c.mu.Lock()
	for _, s := range c.windows[w].slots {
		a.From, a.Missed = s.began, a.Missed+s.by[at].missed
		a.Total.Add(&s.total, 1)
		for key, r := range s.by[at].rows {
			place(rows, math.MaxInt, key, r.token).Add(&r.Counts, 1)
		}
	}
	c.mu.Unlock()
	c.opens.Lock()
	for key, o := range c.open {
		a.Total.Add(&o.Counts, 1)
		place(rows, math.MaxInt, viewed(key)[at], o.token).Add(&o.Counts, 1)
	}
	c.opens.Unlock()
	for _, key := range slices.Sorted(maps.Keys(rows)) { // so that ties do not change places
		f := strings.SplitN(key, "\x00", fields)
		one := Row{Who: Who{f[user], f[agent], f[source], f[verb], f[resource], f[server]}, Counts: rows[key].Counts}
		if one.User != "" {
			one.Token = rows[key].token
		}
		a.Rows = append(a.Rows, one)
	}
	return a
}

// Top makes one row of equal ones, and leaves the n first in an order. It reports whether there is such an order.
func (a *Answer) Top(order string, n int) bool {
	key, ok := map[string]func(*Counts) float64{
		"weight":   func(c *Counts) float64 { return float64(c.weight()) },
		"requests": func(c *Counts) float64 { return float64(c.Requests) },
		"bytes":    func(c *Counts) float64 { return float64(c.In + c.Out) },
		"watches":  func(c *Counts) float64 { return float64(c.Watches) },
		"errors":   func(c *Counts) float64 { return float64(c.Errors) },
		"refused":  func(c *Counts) float64 { return float64(c.Refused) },
		"slowest":  func(c *Counts) float64 { return c.Slowest },
	}[order]
	if !ok {
		return false
	}
	at, rows := make(map[Who]int, len(a.Rows)), []Row{} // [] rather than null
	for _, r := range a.Rows {
		if i, ok := at[r.Who]; ok {
			rows[i].Add(&r.Counts, 1)
		} else {
			at[r.Who], rows = len(rows), append(rows, r)
		}
	}
	slices.SortStableFunc(rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(key(&y.Counts), key(&x.Counts)), cmp.Compare(y.weight(), x.weight()))
	})
	a.Rows, a.Others = rows[:min(n, len(rows))], a.Total
	for i := range a.Rows {
		a.Others.Add(&a.Rows[i].Counts, -1)
	}
	a.Others.Slowest = 0 // not known
	return true
}

// Table returns a line about all callers, and the rows as a table with a head, the others last. A narrow table has what
// shows who it is, cut so that it fits 140 columns as a rule. A column that no row has is left out.
func (a *Answer) Table(wide bool) (summary string, table [][]string) {
	seconds := max(a.To.Sub(a.From).Seconds(), 1)
	mega := func(n int64) string { return fmt.Sprintf("%.1fMi", float64(n)/(1<<20)) }
	cells := func(r *Row) []string {
		slowest := time.Duration(r.Slowest * float64(time.Second)).Round(time.Millisecond)
		return []string{
			r.User, r.Agent, r.Source, r.Verb, r.Resource, r.Server,
			fmt.Sprint(r.Requests), fmt.Sprintf("%.1f/s", float64(r.Requests)/seconds), mega(r.In), mega(r.Out),
			fmt.Sprint(r.Watches), slowest.String(), fmt.Sprint(r.Errors), fmt.Sprint(r.Refused),
		}
	}
	const head = "USER AGENT SOURCE VERB RESOURCE SERVER REQUESTS RATE IN OUT WATCHES SLOWEST ERRORS REFUSED"
	all := [][]string{strings.Fields(head)}
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
				text = strings.ToValidUTF8(text[:narrow], "") + "…"
			}
			table[j] = append(table[j], text)
		}
	}
	table[len(table)-1][0] = "others"
	t := cells(&Row{Counts: a.Total})[6:]
	summary = fmt.Sprintf("%.0f s until %s UTC: %s requests (%s), %s in, %s out, %s watches open",
		seconds, a.To.UTC().Format(time.TimeOnly), t[0], t[1], t[2], t[3], t[4])
	return summary, table
}
