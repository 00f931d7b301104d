package authz

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/internal/memo"
)

// words returns the attributes that a review sends, without the user: a path or a resource.
// Attributes that are not sent must not split cache entries.
func (a *Attributes) words() [9]string {
	if !a.IsResourceRequest {
		return [9]string{a.Verb, a.Path}
	}
	return [9]string{
		a.Verb, a.APIGroup, a.APIVersion, a.Resource, a.Subresource, a.Namespace, a.Name,
		a.FieldSelector, a.LabelSelector,
	}
}

// size returns how many bytes words has.
func (a *Attributes) size() (n int) {
	for _, w := range a.words() {
		n += len(w)
	}
	return n
}

// appendKey appends what a review sends: equal keys, equal questions. Each text, of any bytes, follows its length.
func (a *Attributes) appendKey(key []byte) []byte {
	add := func(text string) {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}
	all := func(texts []string) {
		key = binary.AppendUvarint(key, uint64(len(texts)))
		for _, t := range texts {
			add(t)
		}
	}
	key = strconv.AppendBool(key, a.IsResourceRequest)
	for _, w := range a.words() {
		add(w)
	}
	add(a.User.GetName())
	add(a.User.GetUID())
	all(a.User.GetGroups())
	extra := a.User.GetExtra()
	// usualExtra is how many fields of extra a user may have without an allocation: a ServiceAccount's have five.
	const usualExtra = 8
	names := make([]string, 0, usualExtra)
	for name := range extra {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		add(name)
		all(extra[name])
	}
	return key
}

// Equal reports whether two questions are equal in every field that is sent.
func (a *Attributes) Equal(b *Attributes) bool {
	return bytes.Equal(a.appendKey(nil), b.appendKey(nil))
}

// record returns the input of a review, as upstream's authorization filter makes it: with parsed
// selectors, or without those that do not parse, which needs more permission.
func (a *Attributes) record() authorizer.Attributes {
	ctx := request.WithRequestInfo(request.WithUser(context.Background(), a.User), &a.RequestInfo)
	r, _ := filters.GetAuthorizerAttributes(ctx) // its only error is that there is no RequestInfo
	return r
}

const (
	// maxEntries limits the cached results, so that a hundred thousand users with one question each fit (with half as
	// many sets, 6,000 did not fit and evicted others). An ordinary result takes 1 KB.
	maxEntries = 1 << 18
	// maxBytes limits their total size: a result may have up to maxCached bytes that its caller
	// chose, and a front proxy's user of up to a whole head.
	maxBytes = 128 << 20
	overhead = 256 // the size of a result in addition to its texts
)

// cache has results until they expire, by their key's hash. Keys are compared, too: a collision only costs a place.
type cache struct {
	*memo.Cache[uint64, answer]
	seed maphash.Seed
	room sync.Pool // of *[]byte, for keys
}

type answer struct {
	key string
	Decision
}

func newCache(generation func() uint64) *cache {
	bounds := memo.Config{Entries: maxEntries, Bytes: maxBytes, Generation: generation}
	c := &cache{Cache: memo.New[uint64, answer](bounds), seed: maphash.MakeSeed()}
	c.room.New = func() any { return new([]byte) }
	return c
}

func (c *cache) get(a *Attributes) (Decision, bool) {
	room := c.room.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer c.room.Put(room)
	key := a.appendKey((*room)[:0])
	*room = key
	if e := c.Get(maphash.Bytes(c.seed, key), a.Now); e != nil && e.Value.key == string(key) {
		return e.Value.Decision, true
	}
	return Decision{}, false
}

func (c *cache) put(key string, d Decision, until time.Time, generation uint64) {
	c.Put(&memo.Entry[uint64, answer]{
		Key: maphash.String(c.seed, key), Value: answer{key, d}, Size: overhead + len(key) + len(d.Reason),
		Until: until, Generation: generation,
	})
}
