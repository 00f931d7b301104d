package authz

import (
	"hash/maphash"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/memo"
)

const (
	// maxEntries limits the cached results, so that a hundred thousand users with one question each
	// fit (with half as many sets, 6,000 did not fit and evicted others). An ordinary result takes
	// 1 KB.
	maxEntries = 1 << 18
	// maxBytes limits their total size: a result may have up to maxCached bytes that its caller
	// chose.
	maxBytes = 128 << 20
	// overhead is the size of a result in addition to its strings, with an ordinary user.
	overhead = 512
)

// cache caches results until they expire. Questions are compared field by field, so a hash
// collision only costs a place.
type cache struct {
	memo *memo.Cache[*Attributes, Decision]
	seed maphash.Seed
	// narrow makes hashes collide, for tests; otherwise nil.
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

// put caches a result of a generation. The cache owns the question from then on.
func (c *cache) put(q *Attributes, d Decision, until time.Time, generation uint64) {
	c.memo.Put(&memo.Entry[*Attributes, Decision]{
		Hash: c.hash(q), Key: q, Value: d, Size: q.size() + len(d.Reason) + max(overhead, userSize(q.User)), Until: until, Generation: generation,
	}, q.equal)
}
