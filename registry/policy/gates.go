package policy

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
)

// Gates are the compiled rules of a policy, in its order. They are immutable but for the limits' state. Nil has none.
//
// A rule is compiled to alternatives, one for each of its resourceRules and nonResourceRules, and an alternative to
// conditions: sets of keys, of which a request must have one each. An alternative is found by its rarest condition, the
// one whose keys the fewest others share. So the cost is that of those that share such a key with the request.
type Gates struct {
	// Map is the ConfigMap that the policy is in, if it is. Its own requests pass: nobody locks out who may correct it.
	Map types.NamespacedName
	// ByUser says that a rule needs the caller's user; Agents, Sources and Lists that one looks at these.
	ByUser, Agents, Sources, Lists bool

	all          []*Gate
	byName, old  map[string]*Gate // old are those of prev, until Compile
	alternatives []alternative
	ids          [dimensions]map[string]int32 // of keys. Nil where no rule has any
	nets         map[netip.Prefix]int32       // the same, of bySource
	found        [][]int32                    // :: id → alternatives, in order
	lengths      map[int]map[int]bool         // of prefixes :: 0 for user agents, or length of addresses
	buckets      *buckets
	open         bool // an Allow is faulty, see Add
}

// Gate is a compiled AccessRule.
type Gate struct {
	AccessRule
	*state

	Where   string // its place in the policy, as file:line
	buckets *buckets
}

type alternative struct {
	gate int // index in Gates.all
	all  []condition
}

// condition has the ids of keys, ascending. It is true for requests that have one of them.
type condition []int32

// NewGates returns Gates without rules. Limits go on where those of prev are, which may be nil.
func NewGates(prev *Gates) *Gates {
	g := &Gates{
		byName: make(map[string]*Gate), nets: make(map[netip.Prefix]int32),
		found: make([][]int32, ofKinds), lengths: map[int]map[int]bool{0: {}, 32: {}, 128: {}},
	}
	if prev != nil {
		g.old, g.buckets = prev.byName, prev.buckets
	}
	return g
}

// All returns the rules of a policy. Nil Gates have none. The caller must not change the slice.
func (g *Gates) All() []*Gate {
	if g == nil {
		return nil
	}
	return g.all
}

// Add adds a rule, or says what is wrong with it; hurt says that something is. After a faulty rule that may be an Allow
// it adds none: they might refuse whom that spares, such as nodes.
func (g *Gates) Add(r *AccessRule, where string, at *field.Path, hurt bool) field.ErrorList {
	wrong := r.check(at)
	if other := g.byName[r.Name]; other != nil {
		wrong = append(wrong, field.Invalid(at.Child("name"), r.Name, "it is the name of the rule at "+other.Where))
	}
	hurt = hurt || len(wrong) > 0
	refuses := r.Action == Deny || r.Action == Rate || r.Action == InFlight
	if g.open = g.open || hurt && !refuses; g.open || hurt {
		return wrong
	}
	c := &Gate{AccessRule: *r, Where: where}
	c.state = g.stateOf(c, g.old[r.Name])
	c.buckets = g.buckets
	for _, all := range r.alternatives() {
		a := alternative{gate: len(g.all)}
		for _, keys := range all {
			var ids condition
			for _, k := range keys {
				ids = append(ids, g.id(k))
			}
			slices.Sort(ids)
			a.all = append(a.all, slices.Compact(ids))
		}
		g.alternatives = append(g.alternatives, a)
	}
	g.ByUser = g.ByUser || g.ids[byUser] != nil || g.ids[byGroup] != nil || g.ids[byAccounts] != nil ||
		(r.Action == Rate || r.Action == InFlight) && !r.Shared
	g.Agents, g.Sources = g.Agents || r.UserAgents != nil, g.Sources || r.Sources != nil
	g.Lists = g.Lists || r.WholeLists
	g.all, g.byName[r.Name] = append(g.all, c), c
	return nil
}

func (g *Gates) id(k key) int32 {
	next := int32(len(g.found)) //nolint:gosec // a policy is smaller
	switch k.by {
	case byKind:
		return k.kind
	case bySource:
		if id, ok := g.nets[k.net]; ok {
			return id
		}
		g.nets[k.net] = next
		g.lengths[k.net.Addr().BitLen()][k.net.Bits()] = true
	default:
		if id, ok := g.ids[k.by][k.value]; ok {
			return id
		}
		if g.ids[k.by] == nil {
			g.ids[k.by] = make(map[string]int32)
		}
		if g.ids[k.by][k.value] = next; k.by == byAgents {
			g.lengths[0][len(k.value)] = true
		}
	}
	g.found = append(g.found, nil)
	return next
}

// Compile must be called once all rules are added.
func (g *Gates) Compile() {
	g.old = nil
	shared := make([]int, len(g.found))
	for _, a := range g.alternatives {
		for _, id := range slices.Concat(a.all...) {
			shared[id]++
		}
	}
	sum := func(c condition) (n int) {
		for _, id := range c {
			n += shared[id]
		}
		return n
	}
	for i, a := range g.alternatives {
		for _, id := range slices.MinFunc(a.all, func(x, y condition) int { return cmp.Compare(sum(x), sum(y)) }) {
			g.found[id] = append(g.found[id], int32(i))
		}
	}
}

// Find returns the first rule that matches a request, and the first before it that would, but is a dry run. Nil: none.
func (g *Gates) Find(q *Request) (found, dry *Gate) {
	var room [usualKeys]int32
	ids := g.keys(q, room[:0])
	slices.Sort(ids)
	ids = slices.Compact(ids) // a caller may claim one group thousands of times
	first, firstDry := len(g.all), len(g.all)
	for _, id := range ids {
		for _, i := range g.found[id] {
			a := &g.alternatives[i]
			if a.gate >= first {
				break
			}
			if c := g.all[a.gate]; c.DryRun && a.gate < firstDry && a.matches(ids) {
				firstDry = a.gate
			} else if !c.DryRun && a.matches(ids) {
				first = a.gate
			}
		}
	}
	if firstDry < first {
		dry = g.all[firstDry]
	}
	if first < len(g.all) {
		found = g.all[first]
	}
	return found, dry
}

// matches reports whether a request with these keys, ascending, meets all conditions.
func (a *alternative) matches(ids []int32) bool {
	for _, few := range a.all {
		many := ids // or thousands of groups that rules name
		if len(few) > len(many) {
			few, many = many, few
		}
		if !slices.ContainsFunc(few, func(id int32) bool { _, has := slices.BinarySearch(many, id); return has }) {
			return false
		}
	}
	return true
}

// state is what a rule remembers. It outlives a new policy that has the same limit.
type state struct {
	// refused and passed count requests that matched. Those of a dry run are refused if it would refuse them.
	refused, passed atomic.Uint64
	told            uint64    // those refused that Begins has seen
	toldAt          time.Time // when it last saw more

	all    *rate.Limiter // of Rate, if all share it
	places bound.Places  // of InFlight
}

// Count returns how many requests a rule has refused and let pass since it has its name.
func (s *state) Count() (refused, passed uint64) { return s.refused.Load(), s.passed.Load() }

// Begins reports whether a rule refused since its caller's last call, and had not for calm.
func (s *state) Begins(now time.Time) bool {
	const calm = 5 * time.Minute // clients that try again wait less
	told, last := s.told, s.toldAt
	if s.told = s.refused.Load(); s.told != told {
		s.toldAt = now
	}
	return s.told != told && now.Sub(last) > calm
}

// buckets are the callers' own limits. One that is pushed out begins again with a full burst.
type buckets struct {
	*memo.Cache[bucket, *rate.Limiter]

	mu sync.Mutex // guards making one
}

type bucket struct {
	of   *state
	from bound.Source
}

const (
	// maxBuckets bounds the callers of all rules of kind Rate: more than a large cluster's nodes and controllers.
	maxBuckets  = 1 << 15
	bucketBytes = 16 << 20
	bucketSize  = 256 // with its limiter
	// bucketTime is how long a caller that does not come back is remembered. It is renewed in its
	// second half; until then a full burst has come back anyway, which may take maxRefill.
	bucketTime = time.Hour
	maxRefill  = bucketTime / 2
)

// stateOf returns the state of a rule: old's, if its limit is the same.
func (g *Gates) stateOf(c, old *Gate) *state {
	if old != nil && old.Action == c.Action && old.PerSecond == c.PerSecond && old.Burst == c.Burst &&
		old.Max == c.Max && old.Shared == c.Shared && old.DryRun == c.DryRun {
		return old.state
	}
	s := new(state)
	switch {
	case c.Action != Rate:
	case c.Shared:
		s.all = c.limiter()
	case g.buckets == nil:
		bounds := memo.Config{Entries: maxBuckets, Bytes: bucketBytes}
		g.buckets = &buckets{Cache: memo.New[bucket, *rate.Limiter](bounds)}
	}
	return s
}

func (r *AccessRule) limiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(r.PerSecond), cmp.Or(int(r.Burst), int(math.Ceil(r.PerSecond))))
}

func (b *buckets) of(c *Gate, from bound.Source, now time.Time) *rate.Limiter {
	k := bucket{c.state, from}
	e := b.Get(k, now)
	if e != nil && e.Until.Sub(now) > maxRefill {
		return e.Value
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := c.limiter()
	if e = b.Get(k, now); e != nil {
		l = e.Value
	}
	k.from = bound.Source{User: strings.Clone(from.User), Address: strings.Clone(from.Address)} // not the request's
	size, until := bucketSize+len(from.User), now.Add(bucketTime)
	b.Put(&memo.Entry[bucket, *rate.Limiter]{Key: k, Value: l, Size: size, Until: until})
	return l
}

// Enter counts a request that matches, and reports whether the rule lets it pass; then its Place
// must be left. If not, wait is how long until it would, zero if nobody knows.
func (c *Gate) Enter(from bound.Source, now time.Time) (p bound.Place, wait time.Duration, ok bool) {
	if from.Conn = ""; c.Shared {
		from = bound.Source{}
	}
	switch c.Action {
	case Allow:
		ok = true
	case Rate:
		l := c.all
		if !c.Shared {
			l = c.buckets.of(c, from, now)
		}
		if ok = l.AllowN(now, 1); !ok { // a canceled Reservation would not be given back if there are later ones
			wait = time.Duration((1 - l.TokensAt(now)) / c.PerSecond * float64(time.Second))
		}
	case InFlight:
		p, ok = c.places.TakeOf(from, int64(c.Max))
	}
	if ok {
		c.passed.Add(1)
	} else {
		c.refused.Add(1)
	}
	return p, wait, ok
}
