package policy

import (
	"cmp"
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
	// ByUser says that a rule needs the caller's user.
	ByUser bool

	all          []*Gate
	byName, old  map[string]*Gate // old are those of prev, until Compile
	alternatives []alternative
	by           dimensions           // in which alternatives are found or compared
	found        map[key][]int32      // :: key → alternatives, in order
	agents       map[int]bool         // lengths of prefixes of user agents
	nets         map[int]map[int]bool // :: length of addresses → lengths of networks
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

// condition is true for requests that have one of the keys.
type condition struct {
	by   dimensions // of the keys
	keys map[key]bool
}

// NewGates returns Gates without rules. Limits go on where those of prev are, which may be nil.
func NewGates(prev *Gates) *Gates {
	g := &Gates{byName: make(map[string]*Gate), found: make(map[key][]int32), agents: make(map[int]bool), nets: map[int]map[int]bool{32: {}, 128: {}}}
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
		g.alternatives = append(g.alternatives, alternative{gate: len(g.all), all: all})
		for _, condition := range all {
			g.by |= condition.by
			for k := range condition.keys {
				switch k.by {
				case byAgents:
					g.agents[len(k.value)] = true
				case bySource:
					g.nets[k.net.Addr().BitLen()][k.net.Bits()] = true
				}
			}
		}
	}
	g.ByUser = g.ByUser || g.by&(1<<byUser|1<<byGroup|1<<byAccounts) != 0 || (r.Action == Rate || r.Action == InFlight) && !r.Shared
	g.all, g.byName[r.Name] = append(g.all, c), c
	return nil
}

// Compile must be called once all rules are added.
func (g *Gates) Compile() {
	g.old = nil
	shared := make(map[key]int)
	for _, a := range g.alternatives {
		for _, c := range a.all {
			for k := range c.keys {
				shared[k]++
			}
		}
	}
	sum := func(c condition) (n int) {
		for k := range c.keys {
			n += shared[k]
		}
		return n
	}
	for i, a := range g.alternatives {
		rarest := slices.MinFunc(a.all, func(x, y condition) int { return cmp.Compare(sum(x), sum(y)) })
		for k := range rarest.keys {
			g.found[k] = append(g.found[k], int32(i)) //nolint:gosec // at most maxRules · maxRulesOfMatch
		}
	}
}

// Find returns the first rule that matches a request, and the first one before it that would, if it
// were no dry run. Nil means none.
func (g *Gates) Find(q *Request) (found, dry *Gate) {
	var room [usualKeys]key
	keys := g.keys(q, room[:0])
	first, firstDry := len(g.all), len(g.all)
	look := func(list []int32) {
		for _, i := range list {
			a := &g.alternatives[i]
			switch c := g.all[a.gate]; {
			case a.gate >= first:
				return
			case c.DryRun && a.gate < firstDry && a.matches(keys):
				firstDry = a.gate
			case !c.DryRun && a.matches(keys):
				first = a.gate
			}
		}
	}
	for _, k := range keys {
		look(g.found[k])
	}
	if firstDry < first {
		dry = g.all[firstDry]
	}
	if first < len(g.all) {
		found = g.all[first]
	}
	return found, dry
}

func (a *alternative) matches(keys []key) bool {
	for i := range a.all {
		if !a.all[i].has(keys) {
			return false
		}
	}
	return true
}

func (c *condition) has(keys []key) bool {
	for i := range keys {
		if c.by&(1<<keys[i].by) != 0 && c.keys[keys[i]] {
			return true
		}
	}
	return false
}
