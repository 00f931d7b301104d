package busiest

import (
	"slices"
	"strings"
	"time"
)

// maxRows limits the rows of a sketch. When it is full or closed, half of them are kept: who has
// caused more than a 256th of the weight is there. All sketches together are less than 10 MiB.
const maxRows = 512

// row is exact since it was added. Before that it had at most the weight before.
type row struct {
	Counts
	before int64
	token  any
}

func (r *row) most() int64 { return r.weight() + r.before }

// sketch has the heaviest rows. No other has more weight than missed.
type sketch struct {
	rows   map[string]*row
	missed int64
}

func (s *sketch) add(key string, r *row) {
	if s.rows[key] == nil {
		if len(s.rows) == maxRows {
			s.keepHalf()
		}
		s.rows[strings.Clone(key)] = &row{before: s.missed, token: r.token}
	}
	s.rows[key].Add(&r.Counts, 1)
}

func (s *sketch) keepHalf() {
	const half = maxRows / 2
	var all []int64
	for _, r := range s.rows {
		all = append(all, r.most())
	}
	if len(all) <= half {
		return
	}
	slices.Sort(all)
	s.missed = all[len(all)-half-1]
	kept := make(map[string]*row, half) // a map keeps the room of what is deleted
	for key, r := range s.rows {
		if r.most() > s.missed {
			kept[key] = r
		}
	}
	s.rows = kept
}

// The fields of a key, and the number of views, each with a sketch.
const user, agent, source, verb, server, resource, fields, views = 0, 1, 2, 3, 4, 5, 6, 5

func viewed(key string) [views]string {
	f := strings.SplitN(key, "\x00", fields)
	return [views]string{
		key, only(user, f[user]), only(agent, f[agent]), only(resource, f[resource]), only(source, f[source]),
	}
}

func only(field int, text string) string {
	return strings.Repeat("\x00", field) + text + strings.Repeat("\x00", fields-1-field)
}

type slot struct {
	began time.Time
	total Counts // exact
	by    [views]sketch
}

func newSlot() *slot {
	s := &slot{began: time.Now()}
	for i := range s.by {
		s.by[i].rows = make(map[string]*row)
	}
	return s
}

func (s *slot) add(keys [views]string, r *row) {
	s.total.Add(&r.Counts, 1)
	for i, key := range keys {
		s.by[i].add(key, r)
	}
}

// window is a number of slots, the open one first.
type window struct {
	length time.Duration // of a slot
	slots  []*slot
}

func (w *window) turn() {
	if time.Since(w.slots[0].began) < w.length {
		return
	}
	for i := range w.slots[0].by {
		w.slots[0].by[i].keepHalf()
	}
	w.slots = append([]*slot{newSlot()}, w.slots[:min(len(w.slots), slots-1)]...)
}
