package authz

import (
	"hash/maphash"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/memo"
)

const (
	// maxEntries bounds the answers kept, so that a hundred thousand users who each want one thing find room (in half as many sets
	// 6,000 did not, and drove out others). An ordinary answer takes 1 KB.
	maxEntries = 1 << 18
	// maxBytes bounds what they take together: an answer may have up to maxCached bytes that its caller chose.
	maxBytes = 128 << 20
	// overhead is what an answer takes beside its strings.
	overhead = 512
)

// cache keeps answers, each until a given time. Questions are compared field by field, so a collision costs nothing but a place.
type cache struct {
	memo *memo.Cache[*Attributes, Decision]
	seed maphash.Seed
	// narrow makes hashes collide, for tests: nil.
	narrow func(uint64) uint64
}

func newCache(generation func() uint64) *cache {
	bounds := memo.Config{Entries: maxEntries, Bytes: maxBytes, Generation: generation}
	return &cache{memo: memo.New[*Attributes, Decision](bounds), seed: maphash.MakeSeed()}
}

func (c *cache) hash(q *Attributes) uint64 {
	h := q.hash(c.seed)
	if c.narrow != nil {
		h = c.narrow(h)
	}
	return h
}

func (c *cache) get(q *Attributes) (Decision, bool) {
	e := c.memo.Get(c.hash(q), q.Now, q.equal)
	if e == nil {
		return Decision{}, false
	}
	return e.Value, true
}

// put keeps an answer that was true of a generation. The question becomes the cache's.
func (c *cache) put(q *Attributes, d Decision, until time.Time, generation uint64) {
	c.memo.Put(&memo.Entry[*Attributes, Decision]{
		Hash: c.hash(q), Key: q, Value: d, Size: q.size() + len(d.Reason) + overhead, Until: until, Generation: generation,
	}, q.equal)
}
