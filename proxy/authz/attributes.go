package authz

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/internal/memo"
)

// words returns the attributes that a review sends, without the user: a path or a resource.
// Attributes that are not sent must not split cache entries.
func (a *Attributes) words() [9]string {
	if !a.ResourceRequest {
		return [9]string{a.Verb, a.Path}
	}
	return [9]string{a.Verb, a.APIGroup, a.APIVersion, a.Resource, a.Subresource, a.Namespace, a.Name, a.FieldSelector, a.LabelSelector}
}

// size returns the size of the attributes that the caller chose.
func (a *Attributes) size() int {
	n := 0
	for _, w := range a.words() {
		n += len(w)
	}
	return n
}

// userSize returns the size of a user. Users of certificates and tokens are shared by many results,
// but each request of a front proxy has its own, of up to a whole head.
func userSize(u user.Info) int {
	const header = 16 // of a string
	n := len(u.GetName()) + len(u.GetUID())
	for _, g := range u.GetGroups() {
		n += len(g) + header
	}
	for k, values := range u.GetExtra() {
		n += len(k) + header
		for _, v := range values {
			n += len(v) + header
		}
	}
	return n
}

// hash hashes what Equal compares, except the user's extra, which is rarely the only difference and
// slow to hash.
func (a *Attributes) hash(seed maphash.Seed) uint64 {
	h := uint64(1) // which empty strings change, too
	for _, w := range a.words() {
		h = mix(h, seed, w)
	}
	h = mix(mix(h, seed, a.User.GetName()), seed, a.User.GetUID())
	for _, g := range a.User.GetGroups() {
		h = mix(h, seed, g)
	}
	return h ^ h>>32 // the low bits choose the set
}

// mix adds a string to a hash; the order of strings matters. The factor is odd with well-spread
// bits (2⁶⁴ divided by the golden ratio).
func mix(h uint64, seed maphash.Seed, s string) uint64 {
	if s != "" {
		h ^= maphash.String(seed, s)
	}
	return (h ^ h>>29) * 0x9e3779b97f4a7c15
}

// Equal reports whether two questions are equal in every field that is sent.
func (a *Attributes) Equal(b *Attributes) bool {
	return a.ResourceRequest == b.ResourceRequest && a.words() == b.words() && sameUser(a.User, b.User)
}

func sameUser(a, b user.Info) bool {
	if u, ok := a.(immutable); ok && u.Is(b) {
		return true
	}
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && slices.Equal(a.GetGroups(), b.GetGroups()) &&
		maps.EqualFunc(a.GetExtra(), b.GetExtra(), slices.Equal[[]string])
}

// immutable is a user that never changes and recognizes itself: it needs neither comparison by
// field nor copying.
type immutable interface{ Is(other user.Info) bool }

// clone copies everything, including strings, which may share memory with a request's buffers.
func (a *Attributes) clone() *Attributes {
	c := *a
	for _, s := range []*string{
		&c.Verb, &c.APIGroup, &c.APIVersion, &c.Resource, &c.Subresource, &c.Namespace, &c.Name, &c.Path, &c.FieldSelector, &c.LabelSelector,
	} {
		*s = strings.Clone(*s)
	}
	if _, ok := a.User.(immutable); ok {
		return &c
	}
	u := &user.DefaultInfo{Name: strings.Clone(a.User.GetName()), UID: strings.Clone(a.User.GetUID()), Groups: cloneAll(a.User.GetGroups())}
	if extra := a.User.GetExtra(); extra != nil {
		u.Extra = make(map[string][]string, len(extra))
		for k, v := range extra {
			u.Extra[strings.Clone(k)] = cloneAll(v)
		}
	}
	c.User = u
	return &c
}

func cloneAll(in []string) []string {
	out := slices.Clone(in)
	for i, s := range out {
		out[i] = strings.Clone(s)
	}
	return out
}

// key returns a unique text of a question: maps are sorted, and every part is quoted, or has its
// length: a path may be long, and quoted four times as long.
func (a *Attributes) key() string {
	words, lengths := a.words(), [9]int{}
	for i, w := range words {
		lengths[i] = len(w)
	}
	u := a.User
	return fmt.Sprintf("%t%d%q%q%q%q%s", a.ResourceRequest, lengths, u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), strings.Join(words[:], ""))
}

// record returns the input of a review. It equals the result of upstream's authorization filter
// (GetAuthorizerAttributes in k8s.io/apiserver/pkg/endpoints/filters): with parsed selectors, or
// without those that do not parse, which needs more permission.
func (a *Attributes) record() authorizer.AttributesRecord {
	if !a.ResourceRequest {
		return authorizer.AttributesRecord{User: a.User, Verb: a.Verb, Path: a.Path}
	}
	r := a.AttributesRecord
	if a.FieldSelector != "" {
		if s, err := fields.ParseSelector(a.FieldSelector); err != nil {
			r.FieldSelectorParsingErr = err
		} else if req := s.Requirements(); len(req) > 0 {
			r.FieldSelectorRequirements = req
		}
	}
	if a.LabelSelector != "" {
		if s, err := labels.Parse(a.LabelSelector); err != nil {
			r.LabelSelectorParsingErr = err
		} else if req, _ := s.Requirements(); len(req) > 0 {
			r.LabelSelectorRequirements = req
		}
	}
	return r
}

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
	e := c.memo.Get(c.hash(q), q.Now, q.Equal)
	if e == nil {
		return Decision{}, false
	}
	return e.Value, true
}

// put caches a result of a generation. The cache owns the question from then on.
func (c *cache) put(q *Attributes, d Decision, until time.Time, generation uint64) {
	c.memo.Put(&memo.Entry[*Attributes, Decision]{
		Hash: c.hash(q), Key: q, Value: d, Size: q.size() + len(d.Reason) + max(overhead, userSize(q.User)), Until: until, Generation: generation,
	}, q.Equal)
}
