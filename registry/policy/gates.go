package policy

import (
	"net/netip"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Gates are the compiled rules of a policy, in its order. They are immutable but for the limits'
// state. Nil has none.
type Gates struct {
	// Map is the ConfigMap that the policy is in, if it is. Its own requests pass, so that nobody
	// can lock out who may correct it.
	Map types.NamespacedName
	// ByUser says that a rule needs the caller's user, Agents, Sources and Lists that one looks at
	// these.
	ByUser, Agents, Sources, Lists bool

	all               []*Gate
	byName            map[string]*Gate
	resources, others index
	buckets           *buckets
}

// Gate is a compiled AccessRule.
type Gate struct {
	AccessRule

	// Where is its place in the policy, as file:line.
	Where string

	*state

	buckets  *buckets
	subjects map[key]bool // nil means anybody, known or not
	sources  []netip.Prefix
}

// NewGates returns the Gates without rules, whose limits go on where those of prev are.
func NewGates(prev *Gates) *Gates {
	g := &Gates{byName: make(map[string]*Gate)}
	if prev != nil {
		g.buckets = prev.buckets
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

// Add adds a rule, or says what is wrong with it. Prev has the state of rules before.
func (g *Gates) Add(r *AccessRule, where string, at *field.Path, prev *Gates) field.ErrorList {
	wrong := r.check(at)
	if other := g.byName[r.Name]; other != nil {
		wrong = append(wrong, field.Invalid(at.Child("name"), r.Name, "it is the name of the rule at "+other.Where))
	}
	if len(wrong) > 0 {
		return wrong
	}
	c := &Gate{AccessRule: *r, Where: where, subjects: subjectsOf(r.Match.Subjects)}
	for _, s := range r.Sources {
		p, _ := network(s)
		c.sources = append(c.sources, p)
	}
	var old *Gate
	if prev != nil {
		old = prev.byName[r.Name]
	}
	c.state, c.buckets = g.stateOf(c, old), g.buckets
	limit := r.Action == Rate || r.Action == InFlight
	g.ByUser = g.ByUser || c.subjects != nil || limit && !r.Shared
	g.Agents, g.Sources, g.Lists = g.Agents || r.UserAgents != nil, g.Sources || r.Sources != nil, g.Lists || r.WholeLists
	g.all, g.byName[r.Name] = append(g.all, c), c
	return nil
}

// Compile must be called once all rules are added.
func (g *Gates) Compile() { g.resources, g.others = newIndex(g.all, true), newIndex(g.all, false) }

// Find returns the first rule that matches a request, and the first one before it that would, if it
// were no dry run. Nil means none.
func (g *Gates) Find(q *Request) (found, dry *Gate) {
	x := &g.others
	if q.IsResource {
		x = &g.resources
	}
	first, firstDry := len(g.all), len(g.all)
	x.candidates(q, func(list []int32) {
		for _, n := range list {
			i := int(n)
			switch c := g.all[i]; {
			case i >= first:
				return
			case c.DryRun && i < firstDry && c.matches(q):
				firstDry = i
			case !c.DryRun && c.matches(q):
				first = i
			}
		}
	})
	if firstDry < first {
		dry = g.all[firstDry]
	}
	if first < len(g.all) {
		found = g.all[first]
	}
	return found, dry
}

// matches reports whether a rule matches. What it says of requests is matched as by the apiserver
// (k8s.io/apiserver/pkg/util/flowcontrol/rule.go, which exports nothing).
func (c *Gate) matches(q *Request) bool {
	r := &c.AccessRule
	if c.subjects != nil && !c.isSubject(q.User) || r.WholeLists && !q.WholeList || r.UserAgents != nil && !matches(r.UserAgents, q.UserAgent) {
		return false
	}
	if c.sources != nil && !slices.ContainsFunc(c.sources, func(p netip.Prefix) bool { return p.Contains(q.Source) }) {
		return false
	}
	if len(r.Match.ResourceRules)+len(r.Match.NonResourceRules) == 0 {
		return true
	}
	if !q.IsResource {
		for i := range r.Match.NonResourceRules {
			if m := &r.Match.NonResourceRules[i]; has(m.Verbs, q.Verb) && slices.ContainsFunc(m.NonResourceURLs, q.below) {
				return true
			}
		}
		return false
	}
	for i := range r.Match.ResourceRules {
		m := &r.Match.ResourceRules[i]
		if has(m.Verbs, q.Verb) && has(m.APIGroups, q.APIGroup) && q.named(m.Resources) &&
			(q.Namespace == "" && m.ClusterScope || q.Namespace != "" && has(m.Namespaces, q.Namespace)) {
			return true
		}
	}
	return false
}

// subjectsOf returns nil if anybody is one of them.
func subjectsOf(list []flowcontrolv1.Subject) map[key]bool {
	all := make(map[key]bool)
	for i := range list {
		by, name, _ := subject(&list[i])
		if name == "*" && by != byAccounts {
			return nil
		}
		all[key{by: by, value: name}] = true
	}
	if len(list) == 0 || all[key{by: byGroup, value: user.AllAuthenticated}] && all[key{by: byGroup, value: user.AllUnauthenticated}] {
		return nil
	}
	return all
}

func (c *Gate) isSubject(u user.Info) bool {
	if u == nil {
		return false
	}
	name := u.GetName()
	if c.subjects[key{by: byUser, value: name}] || c.subjects[key{by: byAccounts, value: accountsOf(name)}] { // no namespace is empty
		return true
	}
	for _, group := range u.GetGroups() {
		if c.subjects[key{by: byGroup, value: group}] {
			return true
		}
	}
	return false
}

// accountsOf returns the namespace of a service account. Empty means that it is none.
func accountsOf(name string) string {
	rest, ok := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix)
	namespace, _, whole := strings.Cut(rest, serviceaccount.ServiceAccountUsernameSeparator)
	if !ok || !whole {
		return ""
	}
	return namespace
}

// has reports whether a list has a value. A single "*" has all.
func has(list []string, value string) bool {
	return len(list) == 1 && list[0] == "*" || slices.Contains(list, value)
}

// named reports whether a list of resources has that of the request. It does not allocate.
func (q *Request) named(list []string) bool {
	if q.Subresource == "" || len(list) == 1 && list[0] == "*" {
		return has(list, q.Resource)
	}
	return slices.ContainsFunc(list, func(s string) bool {
		return len(s) == len(q.Resource)+1+len(q.Subresource) && s[:len(q.Resource)] == q.Resource && s[len(q.Resource)] == '/' && s[len(q.Resource)+1:] == q.Subresource
	})
}

// below reports whether the request's path is that of a rule, or below it.
func (q *Request) below(rule string) bool {
	if rule == "*" || rule == q.Path {
		return true
	}
	rule = strings.TrimSuffix(rule, "*")
	return strings.HasPrefix(q.Path, rule) && (strings.HasSuffix(rule, "/") || len(q.Path) > len(rule) && q.Path[len(rule)] == '/')
}
