package policy

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// index finds the rules that may match a request without looking at the others. Each rule is found
// by one condition, which has all of its values in the index: the one whose values the fewest rules
// share. So the cost is that of the rules that share a value with the request in their rarest
// condition, however many there are.
type index struct {
	of     map[key][]int32 // :: value → rules, in order
	used   [dimensions]bool
	always []int32 // rules that nothing makes rare
	agents []int   // lengths of the prefixes of user agents, ascending
	bits   [2][]int
}

// dimension is a condition by which rules are found.
type dimension uint8

// The dimensions.
const (
	byUser dimension = iota
	byGroup
	byAccounts // the namespace of a service account
	byVerb
	byAPIGroup
	byResource
	byNamespace
	byPath
	byAgent
	byAgents // a prefix
	bySource
	dimensions
)

type key struct {
	by    dimension
	value string
	net   netip.Prefix
}

// maxDepth bounds the segments of a path that are looked for.
const maxDepth = 8

// keys calls f with the values of each condition of a rule that can be looked up.
func (c *Gate) keys(resource bool, f func([]key)) {
	list := func(by dimension, lists ...[]string) {
		var keys []key
		for _, list := range lists {
			for _, v := range list {
				if v == "*" {
					return // it has all values
				}
				keys = append(keys, key{by: by, value: v})
			}
		}
		if len(keys) > 0 {
			f(keys)
		}
	}
	if c.subjects != nil {
		f(slices.Collect(maps.Keys(c.subjects)))
	}
	if c.UserAgents != nil {
		var keys []key
		for _, a := range c.UserAgents {
			k := key{by: byAgent, value: a}
			if prefix, is := strings.CutSuffix(a, "*"); is {
				k = key{by: byAgents, value: prefix}
			}
			keys = append(keys, k)
		}
		f(keys)
	}
	if c.sources != nil {
		var keys []key
		for _, p := range c.sources {
			keys = append(keys, key{by: bySource, net: p})
		}
		f(keys)
	}
	var verbs, groups, resources, namespaces, paths [][]string
	for _, r := range c.Match.ResourceRules {
		verbs, groups, resources = append(verbs, r.Verbs), append(groups, r.APIGroups), append(resources, r.Resources)
		if namespaces = append(namespaces, r.Namespaces); r.ClusterScope {
			namespaces = append(namespaces, []string{""})
		}
	}
	if !resource {
		verbs, groups, resources, namespaces = nil, nil, nil, nil
		for _, r := range c.Match.NonResourceRules {
			var below []string
			for _, u := range r.NonResourceURLs {
				if u != "*" {
					u = upTo(strings.TrimSuffix(strings.TrimSuffix(u, "*"), "/"))
				}
				below = append(below, u)
			}
			verbs, paths = append(verbs, r.Verbs), append(paths, below)
		}
	}
	list(byVerb, verbs...)
	list(byAPIGroup, groups...)
	list(byResource, resources...)
	list(byNamespace, namespaces...)
	list(byPath, paths...)
}

// upTo returns the first maxDepth segments of a path.
func upTo(path string) string {
	depth := 0
	for i := range len(path) {
		if path[i] == '/' {
			if depth++; depth > maxDepth {
				return path[:i]
			}
		}
	}
	return path
}

// newIndex makes the index of the rules for requests to resources, or for others.
func newIndex(all []*Gate, resource bool) index {
	x := index{of: make(map[key][]int32)}
	shared := make(map[key]int)
	for _, c := range all {
		c.keys(resource, func(keys []key) {
			for _, k := range keys {
				shared[k]++
			}
		})
	}
	for i, c := range all {
		these, others := len(c.Match.ResourceRules), len(c.Match.NonResourceRules)
		if !resource {
			these, others = others, these
		}
		if these == 0 && others > 0 {
			continue
		}
		var rarest []key
		least := math.MaxInt
		c.keys(resource, func(keys []key) {
			n := 0
			for _, k := range keys {
				n += shared[k]
			}
			if n < least {
				rarest, least = keys, n
			}
		})
		if rarest == nil {
			x.always = append(x.always, int32(i)) //nolint:gosec // at most maxRules
		}
		for _, k := range rarest {
			x.add(k, int32(i)) //nolint:gosec // at most maxRules
		}
	}
	return x
}

func (x *index) add(k key, rule int32) {
	if list := x.of[k]; len(list) == 0 || list[len(list)-1] != rule {
		x.of[k] = append(list, rule)
	}
	x.used[k.by] = true
	note := func(lengths *[]int, n int) {
		if at, found := slices.BinarySearch(*lengths, n); !found {
			*lengths = slices.Insert(*lengths, at, n)
		}
	}
	switch k.by {
	case byAgents:
		note(&x.agents, len(k.value))
	case bySource:
		note(&x.bits[family(k.net.Addr())], k.net.Bits())
	}
}

// family is the index of an address's family in index.bits.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// candidates calls f with lists of rules, each in order: every rule that matches is in one.
func (x *index) candidates(q *Request, f func([]int32)) {
	look := func(by dimension, value string) {
		if x.used[by] {
			f(x.of[key{by: by, value: value}])
		}
	}
	f(x.always)
	if q.User != nil {
		name := q.User.GetName()
		look(byUser, name)
		if x.used[byAccounts] {
			look(byAccounts, accountsOf(name))
		}
		if x.used[byGroup] {
			for _, group := range q.User.GetGroups() {
				look(byGroup, group)
			}
		}
	}
	look(byVerb, q.Verb)
	look(byAgent, q.UserAgent)
	for _, n := range x.agents {
		if n <= len(q.UserAgent) {
			look(byAgents, q.UserAgent[:n])
		}
	}
	if x.used[bySource] && q.Source.IsValid() {
		for _, n := range x.bits[family(q.Source)] {
			net, _ := q.Source.Prefix(n)
			f(x.of[key{by: bySource, net: net}])
		}
	}
	if q.IsResource {
		look(byAPIGroup, q.APIGroup)
		look(byNamespace, q.Namespace)
		if x.used[byResource] && q.Subresource == "" {
			look(byResource, q.Resource)
		} else if x.used[byResource] {
			look(byResource, q.Resource+"/"+q.Subresource)
		}
		return
	}
	if x.used[byPath] {
		path := upTo(q.Path)
		for i := range len(path) {
			if path[i] == '/' {
				look(byPath, path[:i])
			}
		}
		look(byPath, path)
	}
}
