package busiest

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Answer has the busiest callers of a window, or those of several replicas.
type Answer struct {
	// From and To are the begin and end of the window: requests count that ended between them.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Total counts all requests, Others those of callers without a row.
	Total  Counts `json:"total"`
	Others Counts `json:"others"`
	// Missed is the most that a row can lack, or a caller without a row can have, in bytes of
	// bodies and 4 KiB a request.
	Missed int64 `json:"missed"`
	// Rows are the busiest first.
	Rows []Row `json:"rows"`
}

// Row is what one caller did.
type Row struct {
	Who
	Counts
}

// Who says whose row it is. With another view than by caller, only one field is set.
type Who struct {
	// User, Impersonator, Agent and Source are as in Request.
	User         string `json:"user,omitempty"`
	Impersonator string `json:"impersonator,omitempty"`
	Agent        string `json:"agent,omitempty"`
	Source       string `json:"source,omitempty"`
	// Verb and Resource are what was asked for: pods, deployments.apps/scale, or a path.
	Verb     string `json:"verb,omitempty"`
	Resource string `json:"resource,omitempty"`
	// Server is the APIService that answered, local or fairlead.
	Server string `json:"server,omitempty"`
}

// Choice is one of what can be chosen for an answer. The first of its values is the default.
type Choice struct {
	// Name is that of a flag and of a parameter.
	Name string
	// Values are all.
	Values []string
}

// String says what can be chosen.
func (c Choice) String() string {
	return "give " + c.Name + " as one of " + strings.Join(c.Values, ", ")
}

// Choices are the view, the window, and the order of an answer.
func Choices() []Choice {
	return []Choice{
		{"by", names()}, {"window", []string{"minute", "hour"}},
		{"sort", []string{"weight", "requests", "bytes", "watches", "errors", "refused", "slowest"}},
	}
}

// MaxRows limits the rows of an answer that people get: of so many, users of tokens are asked for.
const MaxRows = 100

func (c *Counts) by(order string) float64 {
	switch order {
	case "requests":
		return float64(c.Requests)
	case "bytes":
		return float64(c.In + c.Out)
	case "watches":
		return float64(c.Watches)
	case "errors":
		return float64(c.Errors)
	case "refused":
		return float64(c.Refused)
	case "slowest":
		return c.Slowest
	}
	return float64(c.weight())
}

// Ask returns all rows of a view and a window that are known.
func (c *Callers) Ask(view, window string) *Answer {
	c.flush(false)
	at := max(0, slices.Index(names(), view))
	all := sketch{rows: make(map[string]*row), most: math.MaxInt}
	a := &Answer{To: time.Now()}
	c.mu.Lock()
	from := c.minute[:]
	if window == "hour" { // minute's open slot is not in it yet
		from = append([]*slot{c.minute[0]}, c.hour[:]...)
	}
	for _, s := range from {
		if s != nil {
			a.From = s.began
			a.Total.add(&s.total)
			all.merge(&s.by[at])
		}
	}
	c.mu.Unlock()
	c.opens.Lock()
	for key, o := range c.open {
		split := split(key)
		a.Total.Watches += o.n
		all.add(viewed(at, key, &split), &Counts{Watches: o.n}, 0)
	}
	a.Total.Watches += c.rest.n
	c.opens.Unlock()
	a.Missed = all.missed
	for _, key := range slices.Sorted(maps.Keys(all.rows)) { // so that ties do not change places
		f := split(key)
		a.Rows = append(a.Rows, Row{Who{f[user], f[impersonator], f[agent], f[source], f[verb], f[resource], f[server]}, all.rows[key].Counts})
	}
	return a
}

// Top makes one row of equal ones, orders them, and leaves the first n; Others are the rest.
func (a *Answer) Top(order string, n int) {
	at := make(map[Who]int, len(a.Rows))
	rows := []Row{} // [] rather than null
	for i := range a.Rows {
		r := &a.Rows[i]
		if j, ok := at[r.Who]; ok {
			rows[j].add(&r.Counts)
			continue
		}
		at[r.Who] = len(rows)
		rows = append(rows, *r)
	}
	slices.SortStableFunc(rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(y.by(order), x.by(order)), cmp.Compare(y.weight(), x.weight()))
	})
	a.Rows, a.Others = rows[:min(n, len(rows))], a.Total
	a.Others.Slowest = 0
	for i := range a.Rows {
		r := a.Rows[i].Counts
		a.Others.add(&Counts{Requests: -r.Requests, Errors: -r.Errors, Refused: -r.Refused, In: -r.In, Out: -r.Out, Watches: -r.Watches})
	}
}

// Add adds the answer of another replica.
func (a *Answer) Add(o *Answer) {
	if a.From.IsZero() || o.From.Before(a.From) {
		a.From = o.From
	}
	if o.To.After(a.To) {
		a.To = o.To
	}
	a.Total.add(&o.Total)
	a.Missed += o.Missed
	a.Rows = append(a.Rows, o.Rows...)
}
