// Package memo caches answers for a while, bounded in entries and bytes. Reads take no lock and allocate nothing.
// Writes, one for each answer from elsewhere, take one mutex for a few sets.
package memo

import (
	"cmp"
	"hash/maphash"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Ways is the number of entries in a set. With eight, a half-full cache evicts about one in a thousand too early.
const Ways = 8

// Config configures a Cache.
type Config struct {
	Entries int // the maximum number of entries: Ways times a power of two. Zero means Ways
	Bytes   int // the maximum size of all entries, a tenth of the memory limit at most. Zero means that nothing is kept
	Largest int // the size up to which an entry is kept. Zero means any
	// Generation returns that of the source of the values: entries of another one are dropped. Nil: it is always 0.
	Generation func() uint64
}

// Cache keeps entries until they expire. The hash of a key, with a secret seed, selects its set. Make a Cache with New.
type Cache[K comparable, V any] struct {
	cfg  Config
	seed maphash.Seed
	sets []set[K, V]

	mu    sync.Mutex // guards writes of sets, and the fields below
	bytes int
	hand  uint64 // the next set to sweep
}

type set[K comparable, V any] [Ways]atomic.Pointer[Entry[K, V]]

// Entry is a cached value. It is immutable once cached, except for used.
type Entry[K comparable, V any] struct {
	Key        K         // the question
	Value      V         // the answer
	Size       int       // charged to Config.Bytes
	Until      time.Time // when it expires
	Generation uint64    // Config.Generation's result from before the question

	used atomic.Bool // since a writer last looked for a place in its set
}

// New returns an empty Cache.
func New[K comparable, V any](cfg Config) *Cache[K, V] {
	if cfg.Generation == nil {
		cfg.Generation = func() uint64 { return 0 }
	}
	// One caller with many questions can fill a cache: in a small container that must leave room for requests.
	cfg.Bytes = int(min(int64(cfg.Bytes), debug.SetMemoryLimit(-1)/10))
	return &Cache[K, V]{cfg: cfg, seed: maphash.MakeSeed(), sets: make([]set[K, V], max(cfg.Entries/Ways, 1))}
}

func (c *Cache[K, V]) set(key K) *set[K, V] { return c.at(maphash.Comparable(c.seed, key)) }

func (c *Cache[K, V]) at(place uint64) *set[K, V] {
	return &c.sets[place&uint64(len(c.sets)-1)] //nolint:gosec // a length is not negative
}

func (e *Entry[K, V]) alive(now time.Time, generation uint64) bool {
	return now.Before(e.Until) && e.Generation == generation
}

// Get returns the entry of a key, or nil. The zero now means time.Now.
func (c *Cache[K, V]) Get(key K, now time.Time) *Entry[K, V] {
	s := c.set(key)
	for i := range s {
		e := s[i].Load()
		if e == nil || e.Key != key {
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		if !e.alive(now, c.cfg.Generation()) {
			return nil
		}
		if !e.used.Load() { // a write in every hit would take the cache line from other cores
			e.used.Store(true)
		}
		return e
	}
	return nil
}

// Put caches an entry. It replaces the one with the same key. The cache owns the entry from then on.
func (c *Cache[K, V]) Put(e *Entry[K, V]) {
	if c.cfg.Largest > 0 && e.Size > c.cfg.Largest {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, generation := time.Now(), c.cfg.Generation()
	// Every writer also sweeps another set, so that expired entries disappear even if their sets are never used again.
	c.sweepLocked(func(old *Entry[K, V]) bool { return !old.alive(now, generation) })
	place := c.placeLocked(c.set(e.Key), e.Key, now, generation)
	c.setLocked(place, e)
	// What lives and is much smaller makes no room: by a few large entries one caller would drop everybody's.
	room := func(old *Entry[K, V]) bool { return old != e && (2*old.Size >= e.Size || !old.alive(now, generation)) }
	for left := 64; c.bytes > c.cfg.Bytes; left-- { // sets with a few hundred places, in microseconds
		if c.sweepLocked(room); left == 0 {
			c.setLocked(place, nil)
		}
	}
}

// placeLocked chooses the place for a key: its own, one without a live entry, one not used lately, or any.
func (c *Cache[K, V]) placeLocked(s *set[K, V], key K, now time.Time, generation uint64) *atomic.Pointer[Entry[K, V]] {
	var free *atomic.Pointer[Entry[K, V]]
	unused := &s[c.hand%Ways]
	for i := range s {
		switch old := s[i].Load(); {
		case old != nil && old.Key == key:
			return &s[i]
		case old == nil || !old.alive(now, generation):
			free = &s[i]
		case !old.used.Swap(false):
			unused = &s[i]
		}
	}
	return cmp.Or(free, unused)
}

func (c *Cache[K, V]) sweepLocked(over func(*Entry[K, V]) bool) {
	c.dropLocked(c.at(c.hand), over)
	c.hand++
}

func (c *Cache[K, V]) dropLocked(s *set[K, V], over func(*Entry[K, V]) bool) {
	for i := range s {
		if old := s[i].Load(); old != nil && over(old) {
			c.setLocked(&s[i], nil)
		}
	}
}

// Drop removes a key.
func (c *Cache[K, V]) Drop(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(c.set(key), func(e *Entry[K, V]) bool { return e.Key == key })
}

func (c *Cache[K, V]) setLocked(place *atomic.Pointer[Entry[K, V]], e *Entry[K, V]) {
	if old := place.Swap(e); old != nil {
		c.bytes -= old.Size
	}
	if e != nil {
		c.bytes += e.Size
	}
}
