// Package memo caches answers for a limited time, bounded in entries and bytes.
//
// Reads take no lock and do not allocate. Writes take one mutex for a few sets of eight entries;
// there is one write for each answer from elsewhere.
//
// A Keyed cache has comparable keys. The caller of a Cache hashes and compares its keys itself: a
// key that is passed to a func field would be allocated in each request.
package memo

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Ways is the number of entries in a set. With eight, a cache that is half full evicts about one
// entry in a thousand too early.
const Ways = 8

// Config configures a Cache.
type Config struct {
	// Entries is the maximum number of entries: Ways times a power of two. Zero means Ways.
	Entries int
	// Bytes is the maximum size of all entries. Zero means that nothing is kept.
	Bytes int
	// Largest is the size up to which an entry is kept. Zero means any.
	Largest int
	// Generation returns the generation of the source of the values: entries of another generation
	// are dropped. Nil means that it is always 0.
	Generation func() uint64
}

// Cache keeps entries until they expire. The hash of an entry selects its set. Make a Cache with
// New.
type Cache[K, V any] struct {
	cfg  Config
	sets []set[K, V]

	mu    sync.Mutex // guards writes of sets, and the fields below
	bytes int
	hand  uint64 // the next set to sweep
}

type set[K, V any] [Ways]atomic.Pointer[Entry[K, V]]

// Entry is a cached value. It is immutable once cached, except for used.
type Entry[K, V any] struct {
	// Hash is the hash of Key, with a secret seed. Its low bits select the set.
	Hash uint64
	// Key is the question, Value the answer.
	Key   K
	Value V
	// Size is charged to Config.Bytes.
	Size int
	// Until is when the entry expires.
	Until time.Time
	// Generation is Config.Generation's result from before the question.
	Generation uint64

	used atomic.Bool // since a writer last looked for a place in its set
}

// New returns an empty Cache.
func New[K, V any](cfg Config) *Cache[K, V] {
	if cfg.Generation == nil {
		cfg.Generation = func() uint64 { return 0 }
	}
	return &Cache[K, V]{cfg: cfg, sets: make([]set[K, V], max(cfg.Entries/Ways, 1))}
}

func (c *Cache[K, V]) set(hash uint64) *set[K, V] {
	return &c.sets[hash&uint64(len(c.sets)-1)] //nolint:gosec // a length is not negative
}

func (e *Entry[K, V]) alive(now time.Time, generation uint64) bool {
	return now.Before(e.Until) && e.Generation == generation
}

// Get returns the entry with the hash whose key is the same, or nil. The zero now means time.Now.
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

// Put caches an entry. It replaces the one with the same key. The cache owns the entry from then
// on.
func (c *Cache[K, V]) Put(e *Entry[K, V], same func(K) bool) {
	if c.cfg.Largest > 0 && e.Size > c.cfg.Largest {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, generation := time.Now(), c.cfg.Generation()
	// Every writer also sweeps another set, so that expired entries disappear even if their sets
	// are never used again.
	c.sweepLocked(func(old *Entry[K, V]) bool { return !old.alive(now, generation) })
	s := c.set(e.Hash)
	c.setLocked(&s[c.placeLocked(s, e, same, now, generation)], e)
	for c.bytes > c.cfg.Bytes {
		c.sweepLocked(func(*Entry[K, V]) bool { return true })
	}
}

// placeLocked chooses the place for an entry: that of its key, one without a live entry, one not
// used lately, or any.
func (c *Cache[K, V]) placeLocked(s *set[K, V], e *Entry[K, V], same func(K) bool, now time.Time, generation uint64) int {
	free, unused := -1, int(c.hand%Ways)
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
	if free >= 0 {
		return free
	}
	return unused
}

// sweepLocked drops entries of the next set for which over returns true.
func (c *Cache[K, V]) sweepLocked(over func(*Entry[K, V]) bool) {
	s := c.set(c.hand)
	c.hand++
	for i := range s {
		if old := s[i].Load(); old != nil && over(old) {
			c.setLocked(&s[i], nil)
		}
	}
}

// Drop removes a key.
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

// Keyed is a Cache that hashes and compares its keys. Make one with NewKeyed.
type Keyed[K comparable, V any] struct {
	cache *Cache[K, V]
	seed  maphash.Seed
}

// NewKeyed returns an empty cache.
func NewKeyed[K comparable, V any](cfg Config) *Keyed[K, V] {
	return &Keyed[K, V]{New[K, V](cfg), maphash.MakeSeed()}
}

// Get returns the entry of a key, or nil. The zero now means time.Now.
func (c *Keyed[K, V]) Get(key K, now time.Time) *Entry[K, V] {
	return c.cache.Get(maphash.Comparable(c.seed, key), now, func(k K) bool { return k == key })
}

// Put is Cache.Put; it sets the hash.
func (c *Keyed[K, V]) Put(e *Entry[K, V]) {
	e.Hash = maphash.Comparable(c.seed, e.Key)
	c.cache.Put(e, func(k K) bool { return k == e.Key })
}

// Drop removes a key.
func (c *Keyed[K, V]) Drop(key K) {
	c.cache.Drop(maphash.Comparable(c.seed, key), func(k K) bool { return k == key })
}
