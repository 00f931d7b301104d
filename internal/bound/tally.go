package bound

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Tally counts by source what happened in the last one or two minutes, for people who want to know
// who is behind it. Its memory is bounded: of many sources it keeps the busiest, with counts that
// may be too high by those of others that it has dropped (the Space-Saving algorithm). The zero
// Tally is empty. Do not copy it.
type Tally struct {
	mu sync.Mutex // guards the fields below
	// began is when now began. before is the minute before.
	began       time.Time
	now, before map[Source]int64
}

const (
	// tallied is how many sources are kept: one or two cause most of an overload.
	tallied = 8
	// tallyTime is the length of each of the two periods.
	tallyTime = time.Minute
	// maxName limits the bytes of a name that is kept: none in Kubernetes is longer.
	maxName = 256
)

// Add counts one for s.
func (t *Tally) Add(s Source) {
	s = s.AnyConn()
	if len(s.User) > maxName {
		s.User = strings.Clone(s.User[:maxName])
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turnLocked()
	n := t.now[s]
	if n == 0 && len(t.now) == tallied {
		var least Source
		least, n = t.extreme(t.now, -1)
		delete(t.now, least)
	}
	t.now[s] = n + 1
}

// Busiest returns how often something happened, and the source with most of it.
func (t *Tally) Busiest() (total int64, most Source, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turnLocked()
	all := make(map[Source]int64)
	maps.Copy(all, t.before)
	for s, n := range t.now {
		all[s] += n
	}
	for _, n := range all {
		total += n
	}
	most, n = t.extreme(all, 1)
	return total, most, n
}

// turnLocked begins the next period, or the first.
func (t *Tally) turnLocked() {
	now := time.Now()
	switch age := now.Sub(t.began); {
	case age < tallyTime:
		return
	case age < 2*tallyTime:
		t.before = t.now
	default:
		t.before = nil
	}
	t.now, t.began = make(map[Source]int64), now
}

// extreme returns the source with the highest count, or the lowest if sign is negative.
func (*Tally) extreme(of map[Source]int64, sign int) (Source, int64) {
	if len(of) == 0 {
		return Source{}, 0
	}
	s := slices.MaxFunc(slices.Collect(maps.Keys(of)), func(a, b Source) int {
		return cmp.Or(sign*cmp.Compare(of[a], of[b]), strings.Compare(a.User+a.Address, b.User+b.Address))
	})
	return s, of[s]
}

// Busiest returns the source that holds most places, and how many, of those that are counted by
// source.
func (p *Places) Busiest() (most Source, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, held := range p.by {
		if held > n && s.Conn == "" {
			most, n = s, held
		}
	}
	return most, n
}

// Limit describes a limit that is reached, or was lately.
type Limit struct {
	// Name is that of label limit of fairlead_backend_rejections_total.
	Name string `json:"name"`
	// Held of Most places are taken. Holder holds at least Holds of them, more than any other. Zero
	// and empty: not known for this limit.
	Held   int64  `json:"held,omitempty"`
	Most   int64  `json:"most,omitempty"`
	Holder string `json:"holder,omitempty"`
	Holds  int64  `json:"holds,omitempty"`
	// Refused requests got 429 in the last one or two minutes, By as many of them as Times.
	Refused int64  `json:"refused"`
	By      string `json:"by,omitempty"`
	Times   int64  `json:"times,omitempty"`
}

// Reached returns a limit of most places of p, which may be nil, and whether it is reached, or has
// refused one of refused.
func Reached(name string, p *Places, most int64, refused *Tally) (l Limit, reached bool) {
	l = Limit{Name: name, Most: most}
	var by, holder Source
	l.Refused, by, l.Times = refused.Busiest()
	if l.By = by.String(); p != nil {
		l.Held = p.Held()
		holder, l.Holds = p.Busiest()
		l.Holder = holder.String()
	}
	return l, l.Refused > 0 || most > 0 && l.Held >= most-spared(most) && l.Held > most/2
}

// String says in words how many requests a limit refuses, and whose.
func (l Limit) String() string {
	text := "limit " + l.Name
	if l.Most > 0 {
		text += fmt.Sprintf(": %d of %d places are held", l.Held, l.Most)
	}
	if l.Holds > 0 {
		text += fmt.Sprintf(", at least %d by %s", l.Holds, l.Holder)
	}
	text += fmt.Sprintf("; %d requests got 429 in the last two minutes", l.Refused)
	if l.Times > 0 {
		text += fmt.Sprintf(", %d of them from %s", l.Times, l.By)
	}
	return text
}

// String names a source, empty if there is none.
func (s Source) String() string {
	switch {
	case s.User != "":
		return fmt.Sprintf("user %q", s.User)
	case s.Address != "":
		return "strangers at " + s.Address
	}
	return ""
}
