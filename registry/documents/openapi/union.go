package openapi

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// united returns the union of servers' documents of a group-version. It is kept until they change.
func (o *OpenAPI) united(gv schema.GroupVersion, of []*document) *document {
	if len(of) < 2 {
		o.unions.Delete(gv)
		return append(of, nil)[0]
	}
	last, _ := o.unions.Load(gv)
	if d, ok := last.(*document); ok && slices.Equal(d.of, of) {
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
	o.unions.Store(gv, d)
	return d
}

// members are those of a JSON object.
type members map[string]json.RawMessage

// add adds another object's members that it lacks, and for some levels below also those of objects
// that both have: of a v3 document, paths, each as a whole, and components by kind and name.
func (m members) add(other members, levels int) {
	for name, its := range other {
		var a, b members
		switch own, known := m[name]; {
		case !known:
			m[name] = its
		case levels > 0 && !strings.HasPrefix(name, "/") && json.Unmarshal(own, &a) == nil && json.Unmarshal(its, &b) == nil && a != nil:
			a.add(b, levels-1)
			m[name], _ = json.Marshal(a) // likewise
		}
	}
}
