package authz

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// setCount and ways bound the answers kept: 262,144, so that a hundred thousand users who each want one thing find room (in half as many sets 6,000 did not,
	// and drove out others). An ordinary answer takes 1 KB.
	setCount = 1 << 15
	ways     = 8
	// maxBytes bounds what they take together: an answer may have up to maxCached bytes that its caller chose.
	maxBytes = 128 << 20
	// overhead is what an answer takes beside its strings.
	overhead = 512
)

// cache keeps answers, each until a given time. A question belongs to one set by a hash with a secret seed, and there it is compared field by field, so a
// collision costs nothing but a place. Looking up takes no lock and allocates nothing; writers, of which there are as many as reviews, take one.
type cache struct {
	seed maphash.Seed
	// generation is that of the rules now; an answer of another one is forgotten.
	generation func() uint64
	// narrow makes hashes collide, for tests: nil.
	narrow func(uint64) uint64
	places [setCount][ways]atomic.Pointer[answer]

	mu    sync.Mutex // guards writes of places, and what follows
	bytes int
	hand  int // the set that is swept next
}

// answer is immutable but for used.
type answer struct {
	hash       uint64
	question   *Attributes
	decision   Decision
	until      time.Time
	generation uint64
	size       int
	used       atomic.Bool // since a writer last looked for a place in its set
}

func newCache(generation func() uint64) *cache {
	return &cache{seed: maphash.MakeSeed(), generation: generation}
}

func (c *cache) hash(q *Attributes) uint64 {
	h := q.hash(c.seed)
	if c.narrow != nil {
		h = c.narrow(h)
	}
	return h
}

func (c *cache) get(q *Attributes) (Decision, bool) {
	h := c.hash(q)
	set := &c.places[h%setCount]
	for i := range set {
		a := set[i].Load()
		if a == nil || a.hash != h || !a.question.equal(q) {
			continue
		}
		now := q.Now
		if now.IsZero() {
			now = time.Now()
		}
		if !a.alive(now, c.generation()) {
			return Decision{}, false
		}
		if !a.used.Load() { // else every hit would take the cache line from the other cores
			a.used.Store(true)
		}
		return a.decision, true
	}
	return Decision{}, false
}

func (a *answer) alive(now time.Time, generation uint64) bool {
	return now.Before(a.until) && a.generation == generation
}

// put keeps an answer that was true of a generation. The question becomes the cache's.
func (c *cache) put(q *Attributes, d Decision, until time.Time, generation uint64) {
	a := &answer{hash: c.hash(q), question: q, decision: d, until: until, generation: generation, size: q.size() + len(d.Reason) + overhead}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Every writer sweeps another set too, so that what has died goes even if nobody asks for it or for its neighbours again.
	c.sweepLocked(false)
	set := &c.places[a.hash%setCount]
	c.setLocked(&set[c.placeLocked(set, a)], a)
	for c.bytes > maxBytes {
		c.sweepLocked(true)
	}
}

// placeLocked chooses where an answer goes: where the same question is, where nothing alive is, where nothing was used lately, or anywhere.
func (c *cache) placeLocked(set *[ways]atomic.Pointer[answer], a *answer) int {
	now, generation := time.Now(), c.generation()
	free, unused := -1, -1
	for i := range set {
		switch old := set[i].Load(); {
		case old == nil || !old.alive(now, generation):
			free = i
		case old.hash == a.hash && old.question.equal(a.question):
			return i
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
func (c *cache) sweepLocked(everything bool) {
	now, generation := time.Now(), c.generation()
	set := &c.places[c.hand%setCount]
	c.hand++
	for i := range set {
		if old := set[i].Load(); old != nil && (everything || !old.alive(now, generation)) {
			c.setLocked(&set[i], nil)
		}
	}
}

func (c *cache) setLocked(place *atomic.Pointer[answer], a *answer) {
	if old := place.Swap(a); old != nil {
		c.bytes -= old.size
	}
	if a != nil {
		c.bytes += a.size
	}
}
