package authn

import (
	"hash/maphash"
	"sync"
	"time"
)

// cache remembers something of a token until a given time. It is bounded twice, in entries and in bytes of tokens, and drops what was used longest ago.
// A look-up allocates nothing; tokens are canonical, so it can mistake none for another.
type cache[V any] struct {
	seed maphash.Seed
	// generation is that of who issues tokens; what is remembered of another one is forgotten.
	generation func() uint64
	shards     [cacheShards]shard[V]
}

// cacheShards is enough that cores rarely wait for each other: a shard is locked for some 50 ns.
const cacheShards = 16

type shard[V any] struct {
	mu      sync.Mutex // guards everything below
	entries map[Token]*entry[V]
	// ring is the sentinel of the list of entries: ring.next was used last, ring.prev longest ago.
	ring                 entry[V]
	bytes                int
	maxEntries, maxBytes int
}

type entry[V any] struct {
	token      Token
	value      V
	until      time.Time
	generation uint64
	next, prev *entry[V]
}

// newCache makes a cache whose every shard holds at most so many entries and bytes of tokens.
func newCache[V any](maxEntries, maxBytes int) *cache[V] {
	c := &cache[V]{seed: maphash.MakeSeed(), generation: func() uint64 { return 0 }}
	for i := range c.shards {
		s := &c.shards[i]
		s.entries = map[Token]*entry[V]{}
		s.ring.next, s.ring.prev = &s.ring, &s.ring
		s.maxEntries, s.maxBytes = maxEntries, maxBytes
	}
	return c
}

func (c *cache[V]) shard(t Token) *shard[V] {
	return &c.shards[maphash.Comparable(c.seed, t)%cacheShards]
}

// get returns what is remembered of a token and until when.
func (c *cache[V]) get(t Token) (v V, until time.Time, ok bool) {
	s := c.shard(t)
	now, generation := time.Now(), c.generation()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[t]
	if e == nil {
		return v, until, false
	}
	if !now.Before(e.until) || e.generation != generation {
		s.removeLocked(e)
		return v, until, false
	}
	e.unlink()
	s.pushLocked(e)
	return e.value, e.until, true
}

// put remembers v of a token, as of now. A token larger than a quarter of a shard is not worth it.
func (c *cache[V]) put(t Token, v V, until time.Time) { c.putAsOf(c.generation(), t, v, until) }

// putAsOf is put for what was found out in a generation that may be over by now.
func (c *cache[V]) putAsOf(generation uint64, t Token, v V, until time.Time) {
	s, size := c.shard(t), len(t.Secret())
	if size > s.maxBytes/4 {
		return
	}
	e := &entry[V]{token: t, value: v, until: until, generation: generation}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.entries[t]; old != nil {
		s.removeLocked(old)
	}
	s.entries[t] = e
	s.bytes += size
	s.pushLocked(e)
	for len(s.entries) > s.maxEntries || s.bytes > s.maxBytes {
		s.removeLocked(s.ring.prev)
	}
}

// drop forgets a token.
func (c *cache[V]) drop(t Token) {
	s := c.shard(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[t]; e != nil {
		s.removeLocked(e)
	}
}

func (s *shard[V]) removeLocked(e *entry[V]) {
	e.unlink()
	delete(s.entries, e.token)
	s.bytes -= len(e.token.Secret())
}

func (s *shard[V]) pushLocked(e *entry[V]) {
	e.prev, e.next = &s.ring, s.ring.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry[V]) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}
