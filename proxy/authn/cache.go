package authn

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"
)

// cache remembers something of a token until a given time. It is bounded twice, in entries and in bytes of tokens, and drops what was used longest ago.
// A look-up hashes with a secret seed, so that nobody can aim at one slot, compares the whole token, and allocates nothing.
type cache[V any] struct {
	hash   func(string) uint64
	shards [cacheShards]shard[V]
}

// cacheShards is enough that cores rarely wait for each other: a shard is locked for some 50 ns.
const cacheShards = 16

type shard[V any] struct {
	mu      sync.Mutex // guards everything below
	entries map[uint64]*entry[V]
	// ring is the sentinel of the list of entries: ring.next was used last, ring.prev longest ago.
	ring                 entry[V]
	bytes                int
	maxEntries, maxBytes int
}

type entry[V any] struct {
	hash       uint64
	token      string
	value      V
	until      time.Time
	next, prev *entry[V]
}

// newCache makes a cache whose every shard holds at most so many entries and bytes of tokens.
func newCache[V any](maxEntries, maxBytes int) *cache[V] {
	seed := maphash.MakeSeed()
	c := &cache[V]{hash: func(s string) uint64 { return maphash.String(seed, s) }}
	for i := range c.shards {
		s := &c.shards[i]
		s.entries = map[uint64]*entry[V]{}
		s.ring.next, s.ring.prev = &s.ring, &s.ring
		s.maxEntries, s.maxBytes = maxEntries, maxBytes
	}
	return c
}

func (c *cache[V]) shard(token string) (*shard[V], uint64) {
	h := c.hash(token)
	return &c.shards[h%cacheShards], h
}

// get returns what is remembered of a token and until when.
func (c *cache[V]) get(token string) (v V, until time.Time, ok bool) {
	s, h := c.shard(token)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[h]
	if e == nil || e.token != token {
		return v, until, false
	}
	if !now.Before(e.until) {
		s.removeLocked(e)
		return v, until, false
	}
	e.unlink()
	s.pushLocked(e)
	return e.value, e.until, true
}

// put remembers v of a token. A token larger than a quarter of a shard is not worth it.
func (c *cache[V]) put(token string, v V, until time.Time) {
	s, h := c.shard(token)
	if len(token) > s.maxBytes/4 {
		return
	}
	// Cloned, because the token may be a part of a much larger string: a header, a read buffer.
	e := &entry[V]{hash: h, token: strings.Clone(token), value: v, until: until}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Two tokens of one hash take turns: a collision costs a miss, never a mistake.
	if old := s.entries[h]; old != nil {
		s.removeLocked(old)
	}
	s.entries[h] = e
	s.bytes += len(token)
	s.pushLocked(e)
	for len(s.entries) > s.maxEntries || s.bytes > s.maxBytes {
		s.removeLocked(s.ring.prev)
	}
}

// drop forgets a token.
func (c *cache[V]) drop(token string) {
	s, h := c.shard(token)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[h]; e != nil && e.token == token {
		s.removeLocked(e)
	}
}

func (s *shard[V]) removeLocked(e *entry[V]) {
	e.unlink()
	delete(s.entries, e.hash)
	s.bytes -= len(e.token)
}

func (s *shard[V]) pushLocked(e *entry[V]) {
	e.prev, e.next = &s.ring, s.ring.next
	e.prev.next, e.next.prev = e, e
}

func (e *entry[V]) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}
