package authn

import (
	"hash/maphash"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/memo"
)

// cache caches a value for each token until it expires. Tokens are canonical, so comparing two
// takes one instruction.
type cache[V any] struct {
	memo *memo.Cache[Token, V]
	seed maphash.Seed
	// largest is the size of the longest cached token.
	largest int
}

func newCache[V any](c memo.Config) *cache[V] {
	return &cache[V]{memo: memo.New[Token, V](c), seed: maphash.MakeSeed(), largest: c.Bytes / 1000}
}

func (c *cache[V]) hash(t Token) uint64 { return maphash.Comparable(c.seed, t) }

// get returns the cached value of a token, and when it expires. The zero now means time.Now.
func (c *cache[V]) get(t Token, now time.Time) (v V, until time.Time, ok bool) {
	e := c.memo.Get(c.hash(t), now, t.is)
	if e == nil {
		return v, until, false
	}
	return e.Value, e.Until, true
}

// put caches v for a token. generation was read before v was determined, and may be over by now.
func (c *cache[V]) put(t Token, v V, until time.Time, generation uint64) {
	if size := len(t.Secret()); size <= c.largest {
		c.memo.Put(&memo.Entry[Token, V]{Hash: c.hash(t), Key: t, Value: v, Size: size, Until: until, Generation: generation}, t.is)
	}
}

// drop removes a token.
func (c *cache[V]) drop(t Token) { c.memo.Drop(c.hash(t), t.is) }
