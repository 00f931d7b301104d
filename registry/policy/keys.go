package policy

import (
	"net/netip"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// key is a value that a request has, and that a rule may ask for.
type key struct {
	by    dimension
	value string
	net   netip.Prefix // of bySource
}

// dimension is what a key is a value of.
type dimension uint8

// The dimensions.
const (
	byUser dimension = iota
	byGroup
	byAccounts // the namespace of a service account
	byKind     // whether it is a request to a resource, or a whole list
	byVerb
	byAPIGroup
	byResource // with subresource
	byNamespace
	byPath   // and what is below it
	byAgent  // the whole
	byAgents // a prefix
	bySource
)

// dimensions is a set of them.
type dimensions uint16

const (
	// usualKeys is room for the keys of a request whose user has some ten groups.
	usualKeys = 24
	// maxDepth bounds the segments of a path that have keys.
	maxDepth = 16

	ofResource, ofPath, ofWholeList, ofNamespace = "resource", "path", "list", "namespaced"
)

// alternatives compiles a valid rule. What it says of requests means what it means to the apiserver
// (k8s.io/apiserver/pkg/util/flowcontrol/rule.go, which exports nothing).
func (r *AccessRule) alternatives() (all [][]condition) {
	var common []condition
	add := func(to *[]condition, keys []key) {
		c := condition{keys: make(map[key]bool)}
		for _, k := range keys {
			c.keys[k], c.by = true, c.by|1<<k.by
		}
		if len(keys) > 0 {
			*to = append(*to, c)
		}
	}
	add(&common, subjects(r.Match.Subjects))
	add(&common, keysOf(r.UserAgents, func(s string) key {
		if prefix, is := strings.CutSuffix(s, "*"); is {
			return key{by: byAgents, value: prefix}
		}
		return key{by: byAgent, value: s}
	}))
	add(&common, keysOf(r.Sources, func(s string) key {
		net, _ := network(s)
		return key{by: bySource, net: net}
	}))
	if r.WholeLists {
		add(&common, []key{{by: byKind, value: ofWholeList}})
	}
	named := func(by dimension, values []string) []key {
		if len(values) == 1 && values[0] == "*" {
			return nil // any
		}
		return keysOf(values, func(s string) key { return key{by: by, value: s} })
	}
	for _, m := range r.Match.ResourceRules {
		one := common[:len(common):len(common)]
		namespaces := keysOf(m.Namespaces, func(s string) key {
			if s == "*" {
				return key{by: byKind, value: ofNamespace}
			}
			return key{by: byNamespace, value: s}
		})
		if m.ClusterScope {
			namespaces = append(namespaces, key{by: byNamespace})
		}
		add(&one, []key{{by: byKind, value: ofResource}})
		add(&one, named(byVerb, m.Verbs))
		add(&one, named(byAPIGroup, m.APIGroups))
		add(&one, named(byResource, m.Resources))
		add(&one, namespaces)
		all = append(all, one)
	}
	for _, m := range r.Match.NonResourceRules {
		one := common[:len(common):len(common)]
		paths := named(byPath, m.NonResourceURLs)
		for i, k := range paths {
			if paths[i].value = strings.TrimSuffix(k.value, "*"); !strings.HasSuffix(paths[i].value, "/") {
				paths = append(paths, key{by: byPath, value: k.value + "/"})
			}
		}
		add(&one, []key{{by: byKind, value: ofPath}})
		add(&one, named(byVerb, m.Verbs))
		add(&one, paths)
		all = append(all, one)
	}
	if all == nil {
		add(&common, []key{{by: byKind, value: ofResource}, {by: byKind, value: ofPath}})
		all = [][]condition{common}
	}
	return all
}

func keysOf(values []string, f func(string) key) (keys []key) {
	for _, v := range values {
		keys = append(keys, f(v))
	}
	return keys
}

// subjects returns the keys of subjects. None means anybody, known or not.
func subjects(list []flowcontrolv1.Subject) (keys []key) {
	var known, unknown bool
	for i := range list {
		k, _ := subject(&list[i])
		if k.value == "*" && k.by != byAccounts {
			return nil
		}
		known, unknown = known || k == key{by: byGroup, value: user.AllAuthenticated}, unknown || k == key{by: byGroup, value: user.AllUnauthenticated}
		keys = append(keys, k)
	}
	if known && unknown {
		return nil
	}
	return keys
}

// keys appends the keys of a request that rules ask for.
func (g *Gates) keys(q *Request, keys []key) []key {
	add := func(by dimension, value string) {
		if g.by&(1<<by) != 0 {
			keys = append(keys, key{by: by, value: value})
		}
	}
	if q.User != nil {
		name := q.User.GetName()
		add(byUser, name)
		rest, is := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix)
		if namespace, _, whole := strings.Cut(rest, serviceaccount.ServiceAccountUsernameSeparator); is && whole {
			add(byAccounts, namespace)
		}
		for _, group := range q.User.GetGroups() {
			add(byGroup, group)
		}
	}
	if q.WholeList {
		add(byKind, ofWholeList)
	}
	add(byVerb, q.Verb)
	add(byAgent, q.UserAgent)
	for n := range g.agents {
		if n <= len(q.UserAgent) && q.UserAgent != "" {
			add(byAgents, q.UserAgent[:n])
		}
	}
	for n := range g.nets[q.Source.BitLen()] {
		net, _ := q.Source.Prefix(n)
		keys = append(keys, key{by: bySource, net: net})
	}
	if !q.IsResource {
		add(byKind, ofPath)
		if g.by&(1<<byPath) != 0 {
			keys = pathKeys(q.Path, keys)
		}
		return keys
	}
	add(byKind, ofResource)
	add(byAPIGroup, q.APIGroup)
	if add(byNamespace, q.Namespace); q.Namespace != "" {
		add(byKind, ofNamespace)
	}
	resource := q.Resource
	if q.Subresource != "" && g.by&(1<<byResource) != 0 {
		resource += "/" + q.Subresource
	}
	add(byResource, resource)
	return keys
}

// pathKeys appends the keys of a path: itself, and what it is below.
func pathKeys(path string, keys []key) []key {
	depth := 0
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		keys = append(keys, key{by: byPath, value: path[:i+1]})
		if depth++; depth > maxDepth {
			return keys
		}
	}
	return append(keys, key{by: byPath, value: path})
}
