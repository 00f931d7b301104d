package bound

import (
	"cmp"
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
	if t.now == nil {
		t.now = make(map[Source]int64)
	}
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
	all := maps.Clone(t.before)
	if all == nil {
		all = make(map[Source]int64)
	}
	for s, n := range t.now {
		all[s] += n
	}
	for _, n := range all {
		total += n
	}
	most, n = t.extreme(all, 1)
	return total, most, n
}

// turnLocked begins the next period.
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
	t.now, t.began = nil, now
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
