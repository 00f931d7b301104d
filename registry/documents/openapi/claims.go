package openapi

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// claims is what the v3 index of a backend has. kube-apiserver believes it: of two with a path, it asks one by chance.
type claims struct {
	// now and before are the last two answers' paths: kube-apiserver asks as rarely, and believes what it has read.
	now, before []string
	foreign     []string // the first group-versions of the local apiserver among them
}

const everything = "*" // the claim of an index that is too large to be read
const mostShown = 10   // of the claims, by logs and status

func (c claims) paths() []string { return slices.Concat(c.now, c.before) }

func (q *question) claim(paths ...string) {
	q.claims = claims{now: paths, before: q.known.claims.now}
	t := q.o.cfg.Tables.Table()
	for _, path := range paths {
		if _, ok := groupVersionOf(path); ok && ofLocal(t, path, true) && len(q.claims.foreign) < mostShown {
			q.claims.foreign = append(q.claims.foreign, path)
		}
	}
}

// claim sets what is claimed in a view. Before there is a v2 to make the documents of, nothing is: no group-version may
// be missing. What was claimed stays converted while that is the same: claims by turns must not cost others seconds.
func (o *OpenAPI) claim(v, last *view) {
	if v.local.spec == nil {
		return
	}
	v.claimed = make(map[string]bool)
	asked := make(map[*source]bool)
	for _, s := range o.remotes(v.table) {
		asked[s] = true
	}
	for s := range asked {
		paths := s.Load().claims.paths()
		if slices.Contains(paths, everything) {
			paths = slices.AppendSeq(paths, maps.Keys(v.local.index))
		}
		for _, path := range paths {
			v.claimed[path] = true
		}
	}
	names := make(map[string]bool)
	if last != nil && last.local.spec != nil && last.local.spec.hash == v.local.spec.hash {
		names, v.converted = maps.Clone(last.names), last.converted
	}
	for name := range v.claimed {
		if _, listed := v.local.index[name]; listed && !names[name] {
			names[name], v.converted = true, nil
		}
	}
	if v.names = names; v.converted == nil {
		v.converted = sync.OnceValue(func() map[string]*document { return o.convertLocal(v.local.spec, names) })
	}
}

// Claimed reports whether ServeHTTP answers for a decoded path, because an extension server claims
// it: kube-apiserver would serve that server's document as its own. It never blocks.
func (o *OpenAPI) Claimed(path string) bool {
	name, ok := strings.CutPrefix(path, "/openapi/v3/")
	v := o.view.Load()
	return ok && v != nil && v.claimed[name]
}

// convertLocal makes v3 documents of the local apiserver's v2 document, to which its aggregator
// adds paths of remotes below their own group-versions only.
func (o *OpenAPI) convertLocal(from *packed, claimed map[string]bool) map[string]*document {
	o.heavy <- struct{}{}
	defer func() { <-o.heavy }()
	sw, err := readSpec(from.open())
	out := make(map[string]*document)
	if err == nil {
		err = split(filterLocal(sw, nil), claimed, func(name string, body []byte) {
			gv, _ := groupVersionOf(name)
			out[name] = o.newDocument(gv, nil, body)
		})
	}
	o.tell("converting the local apiserver's OpenAPI", err)
	return out
}

// split makes v3 documents of a v2 document, by their names in the index.
func split(sw *spec.Swagger, names map[string]bool, found func(name string, body []byte)) (err error) {
	defer guard("converting", &err)
	parts := make(map[string]map[string]spec.PathItem)
	for path, item := range sw.Paths.Paths {
		if name := nameOf(path, names); names[name] {
			if parts[name] == nil {
				parts[name] = make(map[string]spec.PathItem)
			}
			parts[name][path] = item
		}
	}
	for name, paths := range parts {
		one := *sw
		one.Paths = &spec.Paths{Paths: paths}
		body, err2 := toV3(prune(&one, func(string) bool { return true }))
		if err = errors.Join(err, err2); err2 == nil {
			found(name, body)
		}
	}
	return err
}

// nameOf returns the name in the v3 index of the document that has a path.
func nameOf(path string, claimed map[string]bool) string {
	name, depth := strings.Trim(path, "/"), 1
	if claimed[name] {
		return name
	}
	parts := strings.SplitN(name, "/", 4)
	switch parts[0] {
	case "api":
		depth = 2
	case "apis":
		depth = 3
	}
	return strings.Join(parts[:min(depth, len(parts))], "/")
}

// united returns the union of servers' documents of a group-version. It is kept until they change.
func (o *OpenAPI) united(gv schema.GroupVersion, of []*document) *document {
	if len(of) < 2 {
		return append(of, nil)[0]
	}
	if d := of[0].union.Load(); d != nil && slices.Equal(d.of, of) {
		return d
	}
	o.heavy <- struct{}{}
	defer func() { <-o.heavy }()
	all, size := make(members), 0
	for _, d := range of {
		if size += d.json.size; size > maxDocument {
			break // all are no larger than one may be
		}
		var next members
		if json.Unmarshal(d.json.open(), &next) == nil {
			all.add(next, 2)
		}
	}
	body, _ := json.Marshal(all) // it cannot fail: all of it was read as JSON
	d := o.newDocument(gv, nil, body)
	d.of = of
	of[0].union.Store(d)
	return d
}

type members map[string]json.RawMessage

// add adds another object's members that it lacks, and for some levels below also those of objects
// that both have: of a v3 document, paths, each as a whole, and components by kind and name.
func (m members) add(other members, levels int) {
	for name, its := range other {
		var a, b members
		switch own, known := m[name]; {
		case !known:
			m[name] = its
		case levels > 0 && !strings.HasPrefix(name, "/") &&
			json.Unmarshal(own, &a) == nil && json.Unmarshal(its, &b) == nil && a != nil:
			a.add(b, levels-1)
			m[name], _ = json.Marshal(a) // likewise
		}
	}
}
