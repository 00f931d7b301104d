package busiest

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxRows limits the rows of an open sketch; half of them go when it is full. keptRows is how
	// many are kept of a closed one: who has caused more than a 256th of a slot's weight is there.
	// All together are less than 10 MiB.
	maxRows  = 512
	keptRows = 256
)

// The fields of a key, in order: a byte with the length and the text of each.
const (
	user = iota
	impersonator
	agent
	source
	verb
	resource
	server
	fields
)

// append appends the row's key. No user's or agent's name in Kubernetes' own components is longer
// than the bounds; of a longer one the beginning counts.
func (r *Request) append(b []byte) []byte {
	b = appendField(b, 128, r.User)
	b = appendField(b, 64, r.Impersonator)
	b = appendField(b, 128, r.Agent)
	b = appendField(b, 46, r.Source) // an address of IPv6 in its longest form
	b = appendField(b, 16, r.Verb)   // deletecollection
	dot, slash := ".", "/"
	if r.Group == "" {
		dot = ""
	}
	if r.Subresource == "" {
		slash = ""
	}
	b = appendField(b, 96, r.Resource, dot, r.Group, slash, r.Subresource)
	return appendField(b, 64, r.Server)
}

// appendField appends a field of at most 255 bytes.
func appendField(b []byte, most int, parts ...string) []byte {
	at := len(b)
	b = append(b, 0)
	for _, p := range parts {
		b = append(b, p[:min(len(p), most-(len(b)-at-1))]...)
	}
	b[at] = byte(len(b) - at - 1) //nolint:gosec // at most most
	return b
}

// split returns the fields of a key.
func split(key string) (all [fields]string) {
	for i := range all {
		end := 1 + int(key[0])
		all[i], key = key[1:end], key[end:]
	}
	return all
}

// alone returns the key that has only one field of all.
func alone(all *[fields]string, field int) string {
	b := make([]byte, 0, fields+len(all[field]))
	for i := range all {
		if i == field {
			b = appendField(b, len(all[i]), all[i])
		} else {
			b = append(b, 0)
		}
	}
	return string(b)
}

// sketch has the heaviest rows. No row that it does not have has more weight than missed.
type sketch struct {
	rows   map[string]*row
	most   int
	missed int64
}

// row is exact since it was added. Before that it had at most the weight before.
type row struct {
	Counts
	before int64
}

func (r *row) most() int64 { return r.weight() + r.before }

func (s *sketch) add(key string, counts *Counts, before int64) {
	r := s.rows[key]
	if r == nil {
		if len(s.rows) >= s.most {
			s.keep(s.most / 2)
		}
		r = &row{before: s.missed}
		s.rows[key] = r
	}
	r.add(counts)
	r.before += before
}

// keep drops all but at most the n heaviest rows.
func (s *sketch) keep(n int) {
	if len(s.rows) <= n {
		return
	}
	var all []int64
	for _, r := range s.rows {
		all = append(all, r.most())
	}
	slices.Sort(all)
	s.missed = all[len(all)-n-1] // every row has at least the old one
	maps.DeleteFunc(s.rows, func(_ string, r *row) bool { return r.most() <= s.missed })
}

func (s *sketch) merge(o *sketch) {
	for _, r := range s.rows {
		r.before += o.missed // it may have been in o, too
	}
	s.missed += o.missed
	for key, r := range o.rows {
		s.add(key, &r.Counts, r.before-o.missed)
	}
}

// slot has what was counted in some time.
type slot struct {
	began time.Time
	total Counts // exact
	by    [views]sketch
}

func newSlot(now time.Time) *slot {
	s := &slot{began: now}
	for i := range s.by {
		s.by[i] = sketch{rows: make(map[string]*row), most: maxRows}
	}
	return s
}

func (s *slot) add(key string, counts *Counts) {
	s.total.add(counts)
	all := split(key)
	for i := range s.by {
		s.by[i].add(viewed(i, key, &all), counts, 0)
	}
}

// views is how many views of rows there are, names are their names.
const views = 5

func names() []string { return []string{"caller", "user", "agent", "resource", "source"} }

// viewed returns the key of a row in a view: all of it by caller, else one field.
func viewed(view int, key string, all *[fields]string) string {
	if view == 0 {
		return key
	}
	return alone(all, [views]int{0, user, agent, resource, source}[view])
}

// miss counts requests of which nobody knows the row.
func (s *slot) miss(counts *Counts) {
	if counts.Requests == 0 {
		return
	}
	s.total.add(counts)
	for i := range s.by {
		s.by[i].merge(&sketch{missed: counts.weight()})
	}
}

func (s *slot) merge(o *slot) {
	s.total.add(&o.total)
	for i := range s.by {
		s.by[i].merge(&o.by[i])
	}
}

// close drops what a slot needs no longer. A map keeps the room of rows that were deleted.
func (s *slot) close() {
	for i := range s.by {
		s.by[i].keep(keptRows)
		rows := make(map[string]*row, len(s.by[i].rows))
		maps.Copy(rows, s.by[i].rows)
		s.by[i].rows = rows
	}
}
