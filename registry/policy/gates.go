package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Gates are the compiled rules of a policy, in its order. They are immutable but for the limits'
// state. Nil has none.
//
// A rule is compiled to alternatives, one for each of its resourceRules and nonResourceRules, and
// an alternative to conditions: sets of keys, of which a request must have one each. An alternative
// is found by the one of its conditions whose keys the fewest others share. So the cost is that of
// the alternatives that share a key with the request in their rarest condition, however many there
// are.
type Gates struct {
	// Map is the ConfigMap that the policy is in, if it is. Its own requests pass, so that nobody
	// can lock out who may correct it.
	Map types.NamespacedName
	// ByUser says that a rule needs the caller's user, Agents and Sources that one looks at these.
	ByUser, Agents, Sources bool

	all          []*Gate
	byName, old  map[string]*Gate // old are those of prev, until Compile
	alternatives []alternative
	ids          [dimensions]map[string]int32 // of keys. Nil where no rule has any
	nets         map[netip.Prefix]int32       // the same, of bySource
	found        [][]int32                    // :: id → alternatives, in order
	lengths      map[int]map[int]bool         // of prefixes :: 0 for user agents, or length of addresses
	buckets      *buckets
}

// Gate is a compiled AccessRule.
type Gate struct {
	AccessRule

	// Where is its place in the policy, as file:line.
	Where string

	*state

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
	g := &Gates{byName: make(map[string]*Gate), nets: make(map[netip.Prefix]int32), found: make([][]int32, ofKinds), lengths: map[int]map[int]bool{0: {}, 32: {}, 128: {}}}
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

// Add adds a rule, or says what is wrong with it.
func (g *Gates) Add(r *AccessRule, where string, at *field.Path) field.ErrorList {
	wrong := r.check(at)
	if other := g.byName[r.Name]; other != nil {
		wrong = append(wrong, field.Invalid(at.Child("name"), r.Name, "it is the name of the rule at "+other.Where))
	}
	if len(wrong) > 0 {
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
	g.ByUser = g.ids[byUser] != nil || g.ids[byGroup] != nil || g.ids[byAccounts] != nil || g.ByUser || (r.Action == Rate || r.Action == InFlight) && !r.Shared
	g.Agents, g.Sources = g.Agents || r.UserAgents != nil, g.Sources || r.Sources != nil
	g.all, g.byName[r.Name] = append(g.all, c), c
	return nil
}

// id returns the id of a key, which may be new.
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
			g.found[id] = append(g.found[id], int32(i)) //nolint:gosec // at most maxRules · maxRulesOfMatch
		}
	}
}

// Find returns the first rule that matches a request, and the first one before it that would, if it
// were no dry run. Nil means none.
func (g *Gates) Find(q *Request) (found, dry *Gate) {
	var room [usualKeys]int32
	ids := g.keys(q, room[:0])
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

func (a *alternative) matches(ids []int32) bool {
	for _, c := range a.all {
		if !slices.ContainsFunc(ids, func(id int32) bool { _, has := slices.BinarySearch(c, id); return has }) {
			return false
		}
	}
	return true
}
