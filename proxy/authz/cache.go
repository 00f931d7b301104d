package authz

import (
	"hash/maphash"
	"sync"
	"time"
)

const (
	// shards is enough that cores rarely wait for each other: one is locked for some 100 ns.
	shards = 16
	// perShard bounds the answers kept: 16,384 in all, twice upstream's 8,192. At the 10,000 bytes that one may have at most, and a user's own, an attacker
	// who has credentials can make it hold some 200 MB for 10 s; an ordinary answer takes 1 KB.
	perShard = 1024
)

// cache keeps answers, each until a given time, and drops what was used longest ago. Questions are looked up by a hash with a secret seed and then
// compared field by field, so a collision costs a miss, never a wrong answer.
type cache struct {
	seed maphash.Seed
	// generation is that of the rules now; an answer of another one is forgotten.
	generation func() uint64
	hash       func(*Attributes, maphash.Seed) uint64
	shards     [shards]shard
}

type shard struct {
	mu      sync.Mutex // guards both fields below
	answers map[uint64]*answer
	// recent is the sentinel of a list of all answers: recent.older was used last, recent.newer longest ago.
	recent answer
}

type answer struct {
	hash         uint64
	question     *Attributes
	decision     Decision
	until        time.Time
	generation   uint64
	older, newer *answer
}

func newCache(generation func() uint64) *cache {
	c := &cache{seed: maphash.MakeSeed(), generation: generation, hash: (*Attributes).hash}
	for i := range c.shards {
		s := &c.shards[i]
		s.answers = map[uint64]*answer{}
		s.recent.older, s.recent.newer = &s.recent, &s.recent
	}
	return c
}

func (c *cache) get(q *Attributes) (Decision, bool) {
	h := c.hash(q, c.seed)
	s := &c.shards[h%shards]
	now, generation := time.Now(), c.generation()
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.answers[h]
	if a == nil || !a.question.equal(q) {
		return Decision{}, false
	}
	s.takeLocked(a)
	if !now.Before(a.until) || a.generation != generation {
		delete(s.answers, h)
		return Decision{}, false
	}
	s.noteLocked(a)
	return a.decision, true
}

// put keeps an answer that was true of a generation. The question becomes the cache's.
func (c *cache) put(q *Attributes, d Decision, until time.Time, generation uint64) {
	a := &answer{hash: c.hash(q, c.seed), question: q, decision: d, until: until, generation: generation}
	s := &c.shards[a.hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.answers[a.hash]; old != nil {
		s.takeLocked(old)
	}
	s.answers[a.hash] = a
	s.noteLocked(a)
	if len(s.answers) > perShard {
		last := s.recent.newer
		s.takeLocked(last)
		delete(s.answers, last.hash)
	}
}

// takeLocked takes an answer out of the list, noteLocked puts it at the end that was used last.
func (s *shard) takeLocked(a *answer) {
	a.newer.older, a.older.newer = a.older, a.newer
}

func (s *shard) noteLocked(a *answer) {
	a.newer, a.older = &s.recent, s.recent.older
	a.newer.older, a.older.newer = a, a
}
