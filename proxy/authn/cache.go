package authn

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// cache remembers something of a token until a given time. It is bounded twice, in entries and in bytes of tokens. A token belongs to one set by a hash with
// a secret seed; tokens are canonical, so it can be mistaken for none other there. Looking up takes no lock and allocates nothing; writers, of which there
// are as many as answers from elsewhere, take one.
type cache[V any] struct {
	seed maphash.Seed
	// generation is that of who issues tokens; what is remembered of another one is forgotten.
	generation func() uint64
	sets       []set[V]
	maxBytes   int

	mu    sync.Mutex // guards writes of sets, and what follows
	bytes int
	hand  int // the set that is swept next
}

// ways is how many tokens of one set are remembered. With eight, a cache that is half full forgets one in some thousand too early.
const ways = 8

type set[V any] [ways]atomic.Pointer[entry[V]]

// entry is immutable but for used.
type entry[V any] struct {
	token      Token
	value      V
	until      time.Time
	generation uint64
	used       atomic.Bool // since a writer last looked for a place in its set
}

// newCache makes a cache of so many entries, a multiple of ways, and bytes of tokens.
func newCache[V any](maxEntries, maxBytes int) *cache[V] {
	return &cache[V]{seed: maphash.MakeSeed(), generation: func() uint64 { return 0 }, sets: make([]set[V], maxEntries/ways), maxBytes: maxBytes}
}

func (c *cache[V]) set(t Token) *set[V] {
	return &c.sets[maphash.Comparable(c.seed, t)%uint64(len(c.sets))]
}

// get returns what is remembered of a token and until when. The zero now is time.Now.
func (c *cache[V]) get(t Token, now time.Time) (v V, until time.Time, ok bool) {
	s := c.set(t)
	for i := range s {
		e := s[i].Load()
		if e == nil || e.token != t {
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		if !e.alive(now, c.generation()) {
			return v, until, false
		}
		if !e.used.Load() { // else every hit would take the cache line from the other cores
			e.used.Store(true)
		}
		return e.value, e.until, true
	}
	return v, until, false
}

func (e *entry[V]) alive(now time.Time, generation uint64) bool {
	return now.Before(e.until) && e.generation == generation
}

// put remembers v of a token, as of now. A token larger than one in a thousand of all bytes is not worth it.
func (c *cache[V]) put(t Token, v V, until time.Time) { c.putAsOf(c.generation(), t, v, until) }

// putAsOf is put for what was found out in a generation that may be over by now.
func (c *cache[V]) putAsOf(generation uint64, t Token, v V, until time.Time) {
	if len(t.Secret()) > c.maxBytes/1000 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Every writer sweeps another set too, so that what has died goes even if nobody asks for it or for its neighbours again.
	c.sweepLocked(false)
	s := c.set(t)
	c.setLocked(&s[c.placeLocked(s, t)], &entry[V]{token: t, value: v, until: until, generation: generation})
	for c.bytes > c.maxBytes {
		c.sweepLocked(true)
	}
}

// placeLocked chooses where a token goes: where it is, where nothing alive is, where nothing was used lately, or anywhere.
func (c *cache[V]) placeLocked(s *set[V], t Token) int {
	now, generation := time.Now(), c.generation()
	free, unused := -1, -1
	for i := range s {
		switch old := s[i].Load(); {
		case old != nil && old.token == t:
			return i
		case old == nil || !old.alive(now, generation):
			free = i
		case !old.used.Swap(false):
			unused = i
		}
	}
	switch {
	case free >= 0:
		return free
	case unused >= 0:
		return unused
	}
	return c.hand % ways
}

// sweepLocked drops what is dead in the next set, or everything.
func (c *cache[V]) sweepLocked(everything bool) {
	now, generation := time.Now(), c.generation()
	s := &c.sets[c.hand%len(c.sets)]
	c.hand++
	for i := range s {
		if old := s[i].Load(); old != nil && (everything || !old.alive(now, generation)) {
			c.setLocked(&s[i], nil)
		}
	}
}

// drop forgets a token.
func (c *cache[V]) drop(t Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.set(t)
	for i := range s {
		if e := s[i].Load(); e != nil && e.token == t {
			c.setLocked(&s[i], nil)
		}
	}
}

func (c *cache[V]) setLocked(place *atomic.Pointer[entry[V]], e *entry[V]) {
	if old := place.Swap(e); old != nil {
		c.bytes -= len(old.token.Secret())
	}
	if e != nil {
		c.bytes += len(e.token.Secret())
	}
}
