package bound

import (
	"sync"
	"sync/atomic"
)

// Places counts what is held of a bound, and by whom. The zero Places are empty. They are not to be copied.
type Places struct {
	// Lend gives a source more than its quarter while at least a 32nd of the bound, and one place, stays free for others. The first
	// quarter of the bound is then not counted by source: taking a place costs one addition. False: a quarter is a quarter.
	Lend bool

	held atomic.Int64
	mu   sync.Mutex // guards by
	// by :: what each source holds, those alone that hold something
	by map[Source]int64
}

// spare is the part of a bound that is never lent.
const spare = 32

// Place is what Take gives. The zero Place holds nothing.
type Place struct {
	of      *Places
	source  Source
	n       int64
	counted bool
}

// Take takes n places of most, or none. With most 0 there is no bound, and they are only counted together.
func (p *Places) Take(s Source, n, most int64) (Place, bool) {
	held := p.held.Add(n)
	counted := most > 0 && (!p.Lend || held > most/quarter)
	if most > 0 && held > most || counted && !p.count(s, n, most, held) {
		p.held.Add(-n)
		return Place{}, false
	}
	return Place{of: p, source: s, n: n, counted: counted}, true
}

// count notes n more for s, unless it holds its share. held is what is held with them.
func (p *Places) count(s Source, n, most, held int64) bool {
	lends := p.Lend && most-held >= max(1, most/spare)
	keys := s.parts()
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

// Held is how many places are taken.
func (p *Places) Held() int64 { return p.held.Load() }

// Leave gives the place back. It may be called again.
func (h *Place) Leave() {
	p := h.of
	if p == nil {
		return
	}
	if h.counted {
		p.uncount(h.source, h.n)
	}
	p.held.Add(-h.n)
	*h = Place{}
}

func (p *Places) uncount(s Source, n int64) {
	keys := s.parts()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range keys {
		k := &keys[i]
		if k.parts == 0 {
			continue
		}
		if p.by[k.key] -= n; p.by[k.key] <= 0 {
			delete(p.by, k.key)
		}
	}
}
