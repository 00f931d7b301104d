package bound

import (
	"sync"
	"sync/atomic"
)

// Places counts the places held of a limit, by source. The zero Places are empty. Do not copy them.
type Places struct {
	// Lend allows a source more than its quarter while at least a 32nd of the limit, and at least
	// one place, stays free for others. Then the first quarter of the limit is not counted by
	// source, so taking a place costs one addition. If false, no source gets more than a quarter.
	Lend bool

	held atomic.Int64
	mu   sync.Mutex // guards by
	// by :: the places of each source, only sources that hold some
	by map[Source]int64
}

// spare is the fraction of a limit that is never lent.
const spare = 32

// Place is the result of Take. The zero Place holds nothing.
type Place struct {
	of      *Places
	source  Source
	n       int64
	counted bool
}

// Take takes n places of most, or none. Zero most means no limit; the places are then counted only
// in total.
func (p *Places) Take(s Source, n, most int64) (Place, bool) {
	held := p.held.Add(n)
	counted := most > 0 && (!p.Lend || held > most/quarter)
	if most > 0 && held > most || counted && !p.count(s, n, most, held) {
		p.held.Add(-n)
		return Place{}, false
	}
	return Place{of: p, source: s, n: n, counted: counted}, true
}

// count adds n for s, unless that exceeds its share. held is the total with them.
func (p *Places) count(s Source, n, most, held int64) bool {
	lends := p.Lend && most-held >= max(1, most/spare)
	keys := s.shares()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range keys {
		if k := &keys[i]; k.parts > 0 && !lends && p.by[k.key]+n > k.of(most) {
			return false
		}
	}
	if p.by == nil {
		p.by = make(map[Source]int64)
	}
	for i := range keys {
		if keys[i].parts > 0 {
			p.by[keys[i].key] += n
		}
	}
	return true
}

// Held returns the number of places taken.
func (p *Places) Held() int64 { return p.held.Load() }

// Leave gives the place back. Further calls do nothing.
func (h *Place) Leave() {
	p := h.of
	if p == nil {
		return
	}
	if h.counted {
		keys := h.source.shares()
		p.mu.Lock()
		for i := range keys {
			if k := &keys[i]; k.parts > 0 {
				if p.by[k.key] -= h.n; p.by[k.key] <= 0 {
					delete(p.by, k.key)
				}
			}
		}
		p.mu.Unlock()
	}
	p.held.Add(-h.n)
	*h = Place{}
}
