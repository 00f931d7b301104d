package memo

import (
	"sync"
	"sync/atomic"
	"time"
)

// Ways is how many entries one set holds. With eight, a cache that is half full forgets one in some thousand too early.
const Ways = 8

// Config configures a Cache.
type Config struct {
	// Entries is how many are kept at most: Ways times a power of two. Zero: Ways.
	Entries int
	// Bytes is how large all entries may be together. Zero: nothing is kept.
	Bytes int
	// Generation is that of the source of the answers: entries of another one are forgotten. Nil: it is always 0.
	Generation func() uint64
}

// Cache keeps entries, each until a given time. An entry belongs to one set by its hash. Make one with New.
type Cache[K, V any] struct {
	generation func() uint64
	sets       []set[K, V]
	maxBytes   int

	mu    sync.Mutex // guards writes of sets, and what follows
	bytes int
	hand  uint64 // the set that is swept next
}

type set[K, V any] [Ways]atomic.Pointer[Entry[K, V]]

// Entry is one answer. Nothing of it changes once it is kept.
type Entry[K, V any] struct {
	// Hash is that of Key, with a secret seed. Its low bits choose the set.
	Hash uint64
	// Key is what was asked, and Value what was answered.
	Key   K
	Value V
	// Size is what the entry counts against Config.Bytes.
	Size int
	// Until is when it is forgotten.
	Until time.Time
	// Generation is when it was true: Config.Generation from before the question.
	Generation uint64

	used atomic.Bool // since a writer last looked for a place in its set
}

// New makes an empty Cache.
func New[K, V any](cfg Config) *Cache[K, V] {
	if cfg.Generation == nil {
		cfg.Generation = func() uint64 { return 0 }
	}
	return &Cache[K, V]{generation: cfg.Generation, sets: make([]set[K, V], max(cfg.Entries/Ways, 1)), maxBytes: cfg.Bytes}
}

func (c *Cache[K, V]) set(hash uint64) *set[K, V] {
	return &c.sets[hash&uint64(len(c.sets)-1)] //nolint:gosec // a length is not negative
}

func (e *Entry[K, V]) alive(now time.Time, generation uint64) bool {
	return now.Before(e.Until) && e.Generation == generation
}

// Get returns the entry whose key has the hash and is the same; nil when there is none. The zero now is time.Now.
func (c *Cache[K, V]) Get(hash uint64, now time.Time, same func(K) bool) *Entry[K, V] {
	s := c.set(hash)
	for i := range s {
		e := s[i].Load()
		if e == nil || e.Hash != hash || !same(e.Key) {
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		if !e.alive(now, c.generation()) {
			return nil
		}
		if !e.used.Load() { // else every hit would take the cache line from the other cores
			e.used.Store(true)
		}
		return e
	}
	return nil
}

// Put keeps an entry, in the place of the one with the same key. The entry becomes the cache's.
func (c *Cache[K, V]) Put(e *Entry[K, V], same func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, generation := time.Now(), c.generation()
	// Every writer sweeps another set too, so that what has died goes even if nobody asks for it or for its neighbours again.
	c.sweepLocked(func(old *Entry[K, V]) bool { return !old.alive(now, generation) })
	s := c.set(e.Hash)
	c.setLocked(&s[c.placeLocked(s, e, same, now, generation)], e)
	for c.bytes > c.maxBytes {
		c.sweepLocked(func(*Entry[K, V]) bool { return true })
	}
}

// placeLocked chooses where an entry goes: where its key is, where nothing alive is, where nothing was used lately, or anywhere.
func (c *Cache[K, V]) placeLocked(s *set[K, V], e *Entry[K, V], same func(K) bool, now time.Time, generation uint64) int {
	free, unused := -1, -1
	for i := range s {
		switch old := s[i].Load(); {
		case old != nil && old.Hash == e.Hash && same(old.Key):
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
	return int(c.hand % Ways)
}

// sweepLocked drops what is over in the next set.
func (c *Cache[K, V]) sweepLocked(over func(*Entry[K, V]) bool) {
	s := c.set(c.hand)
	c.hand++
	for i := range s {
		if old := s[i].Load(); old != nil && over(old) {
			c.setLocked(&s[i], nil)
		}
	}
}

// Drop forgets a key.
func (c *Cache[K, V]) Drop(hash uint64, same func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.set(hash)
	for i := range s {
		if e := s[i].Load(); e != nil && e.Hash == hash && same(e.Key) {
			c.setLocked(&s[i], nil)
		}
	}
}

func (c *Cache[K, V]) setLocked(place *atomic.Pointer[Entry[K, V]], e *Entry[K, V]) {
	if old := place.Swap(e); old != nil {
		c.bytes -= old.Size
	}
	if e != nil {
		c.bytes += e.Size
	}
}
