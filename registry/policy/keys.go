package policy

import (
	"net/netip"
	"slices"
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
	kind  int32        // of byKind
}

type dimension uint8

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
	dimensions
)

// The ids of the keys of byKind, which every policy has.
const (
	ofResource int32 = iota
	ofPath
	ofWholeList
	ofNamespace
	ofKinds
)

const (
	usualKeys = 24 // room for the keys of a request whose user has some ten groups
	maxDepth  = 16 // bounds the segments of a path that have keys
)

// alternatives compiles a valid rule. It says of requests what it says to the apiserver, but that namespaces are of the
// cluster's scope, too (k8s.io/apiserver/pkg/util/flowcontrol/rule.go, which exports nothing).
func (r *AccessRule) alternatives() (all [][][]key) {
	var common [][]key
	add := func(to *[][]key, keys []key) {
		if len(keys) > 0 {
			*to = append(*to, keys)
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
		add(&common, []key{{by: byKind, kind: ofWholeList}})
	}
	named := func(by dimension, values []string) []key {
		if len(values) == 1 && values[0] == "*" {
			return nil // any
		}
		return keysOf(values, func(s string) key { return key{by: by, value: s} })
	}
	for _, m := range r.Match.ResourceRules {
		one := slices.Clip(common)
		namespaces := keysOf(m.Namespaces, func(s string) key {
			if s == "*" {
				return key{by: byKind, kind: ofNamespace}
			}
			return key{by: byNamespace, value: s}
		})
		if m.ClusterScope {
			namespaces = append(namespaces, key{by: byNamespace})
		}
		add(&one, []key{{by: byKind, kind: ofResource}})
		add(&one, named(byVerb, m.Verbs))
		add(&one, named(byAPIGroup, m.APIGroups))
		add(&one, named(byResource, m.Resources))
		add(&one, namespaces)
		all = append(all, one)
	}
	for _, m := range r.Match.NonResourceRules {
		one := slices.Clip(common)
		paths := named(byPath, m.NonResourceURLs)
		for i, k := range paths {
			if paths[i].value = strings.TrimSuffix(k.value, "*"); !strings.HasSuffix(paths[i].value, "/") {
				paths = append(paths, key{by: byPath, value: k.value + "/"})
			}
		}
		add(&one, []key{{by: byKind, kind: ofPath}})
		add(&one, named(byVerb, m.Verbs))
		add(&one, paths)
		all = append(all, one)
	}
	if all == nil {
		add(&common, []key{{by: byKind, kind: ofResource}})
		all = [][][]key{common}
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
		known = known || k == key{by: byGroup, value: user.AllAuthenticated}
		unknown = unknown || k == key{by: byGroup, value: user.AllUnauthenticated}
		keys = append(keys, k)
	}
	if known && unknown {
		return nil
	}
	return keys
}

// keys appends the ids of those keys of a request that rules have.
func (g *Gates) keys(q *Request, ids []int32) []int32 {
	add := func(by dimension, value string) {
		if id, ok := g.ids[by][value]; ok {
			ids = append(ids, id)
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
	add(byVerb, q.Verb)
	add(byAgent, q.UserAgent)
	for n := range g.lengths[0] {
		if n <= len(q.UserAgent) && q.UserAgent != "" {
			add(byAgents, q.UserAgent[:n])
		}
	}
	if q.Source.IsValid() {
		for n := range g.lengths[q.Source.BitLen()] {
			net, _ := q.Source.Prefix(n)
			if id, ok := g.nets[net]; ok {
				ids = append(ids, id)
			}
		}
	}
	if !q.IsResource {
		for i, depth := 0, 0; i < len(q.Path) && depth <= maxDepth; i++ {
			if q.Path[i] == '/' { // what it is below
				add(byPath, q.Path[:i+1])
				depth++
			}
		}
		add(byPath, q.Path)
		return append(ids, ofPath)
	}
	add(byAPIGroup, q.APIGroup)
	resource := q.Resource
	if q.Subresource != "" {
		resource += "/" + q.Subresource
	}
	add(byResource, resource)
	if ids = append(ids, ofResource); q.WholeList {
		ids = append(ids, ofWholeList)
	}
	if add(byNamespace, q.Namespace); q.Namespace != "" {
		ids = append(ids, ofNamespace)
	}
	if q.Resource == "namespaces" {
		add(byNamespace, "") // though a path's parser says that each is in itself
	}
	return ids
}
