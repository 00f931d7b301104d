package policy

import (
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rule is a compiled Backend: when it gets requests.
type Rule struct {
	// Where is its place in the policy, as file:line.
	Where string
	// When is its condition. Nil means a standby.
	When *When

	namespaces labels.Selector // of When
	known      *Namespaces
}

// Matches reports whether a request is for the backend. None is for a standby.
func (r *Rule) Matches(q *Request) bool { return r.Fails(q) == "" }

// Fails returns the field of the Backend by which a request is not for it. Empty: it is.
func (r *Rule) Fails(q *Request) string {
	if r.When == nil {
		return "standby"
	}
	field := r.When.fails(q)
	if field == "" && r.namespaces != nil && !r.known.match(q.Namespace, r.namespaces) {
		return "namespaceLabels"
	}
	return field
}

// Namespaces are the labels of the cluster's namespaces. The zero value has none. It is safe for
// concurrent use.
type Namespaces struct {
	// Forbidden says that they may not be read.
	Forbidden atomic.Bool

	labels sync.Map // :: name → labels.Set
}

// Set stores the labels of a namespace.
func (n *Namespaces) Set(name string, l labels.Set) { n.labels.Store(name, l) }

// Keep forgets all namespaces but those for which f is true.
func (n *Namespaces) Keep(f func(name string) bool) {
	for name := range n.labels.Range {
		if !f(name.(string)) { //nolint:forcetypeassert // nothing else is stored
			n.labels.Delete(name)
		}
	}
}

func (n *Namespaces) match(name string, by labels.Selector) bool {
	found, known := n.labels.Load(name)
	return known && by.Matches(found.(labels.Set)) //nolint:forcetypeassert // nothing else is stored
}

// maxValues bounds a list of a condition, which every request may search.
const maxValues = 100

// Rule compiles when the backend gets requests. Known may be nil.
func (b *Backend) Rule(where string, at *field.Path, known *Namespaces) (r *Rule, wrong field.ErrorList) {
	r = &Rule{Where: where, When: b.When, known: known}
	if (b.When == nil) != b.Standby {
		return r, field.ErrorList{field.Required(at.Child("when"), "either when, or standby: true")}
	}
	if b.When == nil {
		return r, nil
	}
	at = at.Child("when")
	given := b.When.NamespaceLabels != nil
	b.When.lists(func(name string, values []string) {
		given, wrong = given || values != nil, append(wrong, checkValues(at.Child(name), values)...)
	})
	if !given {
		wrong = append(wrong, field.Required(at, "a condition: without one it would get all requests"))
	}
	if b.When.NamespaceLabels != nil && known == nil {
		wrong = append(wrong, field.Forbidden(at.Child("namespaceLabels"), "there is no local apiserver, which has namespaces"))
	} else if b.When.NamespaceLabels != nil {
		var err error
		if r.namespaces, err = metav1.LabelSelectorAsSelector(b.When.NamespaceLabels); err != nil {
			wrong = append(wrong, field.Invalid(at.Child("namespaceLabels"), "", err.Error()))
		}
	}
	return r, wrong
}
