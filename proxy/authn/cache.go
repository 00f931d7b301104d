package authn

import (
	"hash/maphash"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/memo"
)

// cache remembers something of a token until a given time. Tokens are canonical, so comparing two takes one instruction.
type cache[V any] struct {
	memo *memo.Cache[Token, V]
	seed maphash.Seed
	// largest is the size of a token beyond which it is not worth it.
	largest int
}

func newCache[V any](c memo.Config) *cache[V] {
	return &cache[V]{memo: memo.New[Token, V](c), seed: maphash.MakeSeed(), largest: c.Bytes / 1000}
}

func (c *cache[V]) hash(t Token) uint64 { return maphash.Comparable(c.seed, t) }

// get returns what is remembered of a token and until when. The zero now is time.Now.
func (c *cache[V]) get(t Token, now time.Time) (v V, until time.Time, ok bool) {
	e := c.memo.Get(c.hash(t), now, t.is)
	if e == nil {
		return v, until, false
	}
	return e.Value, e.Until, true
}

// put remembers v of a token, which was found out in a generation that may be over by now.
func (c *cache[V]) put(t Token, v V, until time.Time, generation uint64) {
	if size := len(t.Secret()); size <= c.largest {
		c.memo.Put(&memo.Entry[Token, V]{Hash: c.hash(t), Key: t, Value: v, Size: size, Until: until, Generation: generation}, t.is)
	}
}

// drop forgets a token.
func (c *cache[V]) drop(t Token) { c.memo.Drop(c.hash(t), t.is) }
